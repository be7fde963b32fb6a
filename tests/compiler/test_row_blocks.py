"""Values by blocks of rows have the bits of the same values computed whole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from policyc.compiler import row_blocks
from policyc.compiler.ir.graph import is_weight, value_types
from policyc.compiler.ir.interpreter import Interpreter
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.types import Array, DType
from policyc.compiler.row_blocks import RowBlocks

TEXT = """\
input x: f32[2,4] rate=observation
weight @gate: f32[6,4]
weight @up: f32[6,4]
weight @norm: f32[4]
output y

stage load rate=load () -> (%9: f32[2,4]) {
  %0: f32[4] = add_scalar(@norm) {value=1.0}
  %1: f32[6,4] = mul(@gate, %0)
  %2: f32[6,4] = mul(@up, %0)
  %3: f32[6,2,4] = stack(%1, %2) {axis=1}
  %4: f32[12,4] = reshape(%3) {shape=[12,4]}
  %5: bf16[12,4] = cast(%4) {dtype=bf16}
  %6: f32[18,4] = concat(%4, @gate) {axis=0}
  %7: f32[6,8] = concat(%1, @up) {axis=1}
  %8: f32[6,6] = linear(@gate, %2)
  %10: f32[3,16] = reshape(%4) {shape=[3,16]}
  %11: f32[4,12] = permute(%4) {order=[1,0]}
  %12: bf16[4,12] = cast(%11) {dtype=bf16}
  %9: f32[2,4] = slice(%6) {axis=0, start=0, stop=2}
}

stage run rate=observation (x: f32[2,4], %9: f32[2,4]) -> (y: f32[2,4]) {
  y: f32[2,4] = add(x, %9)
}
"""
VALUES = ("%0", "%1", "%4", "%5", "%6", "%7", "%8", "%10", "%11", "%12")


@pytest.fixture(params=[np.dtype(np.float32), DType.BF16.numpy], ids=["float32", "bfloat16"])
def stored(request: pytest.FixtureRequest) -> dict[str, Array]:
    random = np.random.default_rng(3)
    shapes = {"@gate": (6, 4), "@up": (6, 4), "@norm": (4,)}
    return {
        name: random.standard_normal(size).astype(request.param) for name, size in shapes.items()
    }


def whole(stored: Mapping[str, Array]) -> dict[str, Array]:
    graph = parse_graph(TEXT)
    values: dict[str, Array] = {}
    Interpreter(graph, stored.__getitem__).run_stage(graph.stages[0], values)
    return values | dict(stored)


@pytest.mark.parametrize("elements", [1, 20, 1000])
@pytest.mark.parametrize("small_bytes", [0, 16])
def test_the_bits_of_the_whole(
    stored: dict[str, Array], elements: int, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_ELEMENTS", elements)
    graph, expected = parse_graph(TEXT), whole(stored)
    blocks = RowBlocks(
        produced={value.name: node for node in graph.stages[0].nodes for value in node.outputs},
        types=value_types(graph),
        whole=expected.__getitem__,
        small_bytes=small_bytes,
    )
    for name in VALUES:
        got = np.concatenate(tuple(blocks.blocks(name)))
        assert got.dtype == expected[name].dtype and got.shape == expected[name].shape
        assert got.tobytes() == expected[name].tobytes(), name


def test_only_weights_are_read_whole(stored: dict[str, Array]) -> None:
    """A merged, scaled and rounded weight is never made of whole intermediates."""
    graph, expected, asked = parse_graph(TEXT), whole(stored), set()

    def read(name: str) -> Array:
        asked.add(name)
        return expected[name]

    blocks = RowBlocks(
        produced={value.name: node for node in graph.stages[0].nodes for value in node.outputs},
        types=value_types(graph),
        whole=read,
        small_bytes=16,
    )
    tuple(blocks.blocks("%5"))
    assert {name for name in asked if not is_weight(name)} == {"%0"}
