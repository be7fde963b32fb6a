from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from policyc.compiler.ir.interpreter import Interpreter
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.types import Array, DType
from policyc.compiler.ir.verify import verify
from policyc.compiler.materialise import materialise

MERGED = """\
input x: f32[2,4] rate=observation
weight @q: f32[3,4]
weight @k: f32[2,4]
weight @bias: f32[5]
output y
output z

stage load rate=load () -> (%0: f32[5,4], %2: bf16[5,4]) {
  %0: f32[5,4] = concat(@q, @k) {axis=0}  # layer.q+layer.k
  %1: f32[5,4] = add(%0, %0)  # layer.q
  %2: bf16[5,4] = cast(%1) {dtype=bf16}  # layer.q+layer.k
}

stage run rate=observation (x: f32[2,4], %0: f32[5,4], %2: bf16[5,4]) -> (y: f32[2,5], z: f32[2,5]) {
  y: f32[2,5] = linear(x, %0, @bias) {bias=true}
  %3: bf16[2,4] = cast(x) {dtype=bf16}
  z: f32[2,5] = linear(%3, %2)
}
"""  # noqa: E501 - the text form has no line breaks


@pytest.fixture
def stored() -> dict[str, Array]:
    random = np.random.default_rng(0)
    shapes = {"q": (3, 4), "k": (2, 4), "bias": (5,)}
    return {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def counting(stored: dict[str, Array], reads: Counter[str]) -> Callable[[str], Array]:
    def read(name: str) -> Array:
        reads[name] += 1
        return stored[name]

    return read


def test_results_of_the_load_stage_become_weights(stored: dict[str, Array]) -> None:
    graph = parse_graph(MERGED)
    final, packed = materialise(graph, stored.__getitem__)
    verify(final, "materialise")
    assert [stage.name for stage in final.stages] == ["run"]
    assert final.weights == packed.values
    merged = np.concatenate([stored["q"], stored["k"]])
    made = {value.name: packed.produce(value.name) for value in packed.values}
    assert set(made) == {"@layer.q-layer.k.packed", "@layer.q-layer.k.packed.1", "@bias"}
    np.testing.assert_array_equal(made["@layer.q-layer.k.packed"], merged)
    doubled = made["@layer.q-layer.k.packed.1"]
    assert doubled.dtype == DType.BF16.numpy
    np.testing.assert_array_equal(doubled, (merged + merged).astype(DType.BF16.numpy))


def test_the_values_stay_the_same(stored: dict[str, Array]) -> None:
    graph = parse_graph(MERGED)
    final, packed = materialise(graph, stored.__getitem__)
    inputs = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    before = Interpreter(graph, lambda name: stored[name[1:]]).run(inputs, ("y", "z"))
    after = Interpreter(final, packed.produce).run(inputs, ("y", "z"))
    for name in ("y", "z"):
        np.testing.assert_array_equal(before[name], after[name])


def test_weights_are_computed_only_when_asked_for(stored: dict[str, Array]) -> None:
    """Small results are kept for those that are made of them; nothing is read in advance."""
    reads: Counter[str] = Counter()
    _, packed = materialise(parse_graph(MERGED), counting(stored, reads))
    assert not reads
    packed.produce("@layer.q-layer.k.packed")
    assert reads == {"q": 1, "k": 1}
    packed.produce("@layer.q-layer.k.packed.1")
    assert reads == {"q": 1, "k": 1}


def test_a_checkpoint_in_bfloat16_stays_exact(stored: dict[str, Array]) -> None:
    """A reader may hand out bfloat16 in place of float32: the bundle gets the declared type."""
    rounded = {name: array.astype(DType.BF16.numpy) for name, array in stored.items()}
    _, packed = materialise(parse_graph(MERGED), rounded.__getitem__)
    bias = packed.produce("@bias")
    assert bias.dtype == np.float32
    np.testing.assert_array_equal(bias, rounded["bias"].astype(np.float32))


def test_without_a_load_stage_only_used_weights_are_listed(stored: dict[str, Array]) -> None:
    text = """\
input x: f32[2,4] rate=observation
weight @q: f32[3,4]
weight @k: f32[2,4]
output y

stage run rate=observation (x: f32[2,4]) -> (y: f32[2,3]) {
  y: f32[2,3] = linear(x, @q)
}
"""
    graph = parse_graph(text)
    final, packed = materialise(graph, stored.__getitem__)
    assert [value.name for value in packed.values] == ["@q"]
    assert final.stages == graph.stages
