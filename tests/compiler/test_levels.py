"""Which ops may stand where."""

from __future__ import annotations

import pytest

from policyc.compiler.ir.errors import VerifyError
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.levels import is_fused, is_scheduled, is_traced

TEXT = """\
input x: f32[2,4] rate=observation
weight @w: f32[4,4]
output y

stage s rate=observation (x: f32[2,4]) -> (y: f32[2,4]) {
  y: f32[2,4] = linear(x, @w)
}
"""
ONE_OP = TEXT.replace("weight @w: f32[4,4]\n", "")
LOOP = """\
input x: f32[2,4] rate=observation
output y

stage s rate=step (x: f32[2,4]) -> (y: f32[2,4]) {
  loop count=2 index=%0: i32[]
  carry x -> %1: f32[2,4], %2 -> y: f32[2,4]
  %2: f32[2,4] = rms_norm(%1) {eps=1e-06}
}
"""


def test_a_product_belongs_to_every_level() -> None:
    for level in (is_traced, is_fused, is_scheduled):
        level(parse_graph(TEXT))


def test_a_lone_pointwise_op_is_not_fused() -> None:
    graph = parse_graph(ONE_OP.replace("linear(x, @w)", "silu(x)"))
    is_traced(graph)
    with pytest.raises(VerifyError, match="y silu: op silu does not belong to level fused"):
        is_fused(graph)


def test_a_report_may_hold_any_op() -> None:
    text = ONE_OP.replace("linear(x, @w)", "silu(x)")
    is_scheduled(parse_graph(text.replace("stage s rate=observation", "stage s rate=report")))


def test_a_loop_is_not_scheduled() -> None:
    is_fused(parse_graph(LOOP))
    with pytest.raises(VerifyError, match="stage s still has its loop at level scheduled"):
        is_scheduled(parse_graph(LOOP))


def test_float64_is_not_scheduled() -> None:
    text = ONE_OP.replace("linear(x, @w)", "rms_norm(x) {eps=1e-06, dtype=f64}")
    graph = parse_graph(text.replace("y: f32[2,4]", "y: f64[2,4]"))
    with pytest.raises(VerifyError, match=r"stage s: y: f64\[2,4\] is float64 at level scheduled"):
        is_scheduled(graph)


def test_split_products_come_after_fusion() -> None:
    text = TEXT.replace("linear(x, @w)", "split_linear(x, @w) {splits=2}")
    graph = parse_graph(text.replace("y: f32[2,4]", "y: f32[2,2,4]"))
    is_scheduled(graph)
    with pytest.raises(VerifyError, match="op split_linear does not belong to level fused"):
        is_fused(graph)
