"""Small graphs as text, for the tests of the intermediate representation."""

from __future__ import annotations

SOLVER = """\
input x: f32[2,4] rate=observation
input noise: f32[2,4] rate=observation
weight @table: f32[3,4]
weight @w: f32[4,4]
output actions
named states
named seen

stage encode rate=observation (x: f32[2,4]) -> (%0: f32[2,4]) {
  %0: f32[2,4] = linear(x, @w) {activation=silu}  # encoder.proj
}

stage denoise rate=step (noise: f32[2,4], %0: f32[2,4]) -> (actions: f32[2,4], states: f32[3,2,4]) {
  loop count=3 index=%1: i32[]
  carry noise -> %2: f32[2,4], %5 -> actions: f32[2,4]
  collect %5 -> states: f32[3,2,4]
  %3: f32[1,4] = table_row(@table, %1)
  %4: f32[2,4] = mul(%0, %3)
  %5: f32[2,4] = add(%2, %4)
}

stage report rate=report (states: f32[3,2,4]) -> (seen: f32[2,3,4]) {
  seen: f32[2,3,4] = permute(states) {order=[1, 0, 2]}
}
"""

TWO_RESULTS = """\
input b: f32[2,4] rate=observation
input r: f32[2,4] rate=observation
output s
output n

stage only rate=observation (b: f32[2,4], r: f32[2,4]) -> (s: f32[2,4], n: bf16[2,4]) {
  s: f32[2,4], n: bf16[2,4] = add_norm(b, r) {kind=rms, eps=1e-06, dtype=bf16}
}
"""
