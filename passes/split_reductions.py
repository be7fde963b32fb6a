"""Cut long reductions of small products into partial sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

from policyc.compiler.ir.attributes import (
    AddNormAttributes,
    LinearAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.graph import Graph, Node
from policyc.compiler.ir.types import TensorType
from policyc.passes.rewrite import Rewrite


@dataclass(frozen=True, slots=True, kw_only=True)
class TileRule:
    """Products of at most `most_rows` rows: the side lengths of a typical tile, and the least
    part of the reduction that is worth a program of its own."""

    most_rows: int
    tile_rows: int
    tile_columns: int
    least_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReductions:
    """Options: a product is cut so that its tiles fill about `programs` processors at once.

    The first rule that has room for the product's rows applies; without one it stays whole.
    """

    programs: int = 132
    most_splits: int = 4
    rules: tuple[TileRule, ...] = (
        TileRule(most_rows=64, tile_rows=64, tile_columns=64, least_k=256),
        TileRule(most_rows=1 << 14, tile_rows=128, tile_columns=128, least_k=1024),
    )


def split_reductions(graph: Graph, options: SplitReductions = SplitReductions()) -> Graph:
    """Let a residual sum add up the partial sums of the linear before it.

    Before:    %b = linear(x, @w, @c) {bias=true};  %s, %n = add_norm(%b, r, ..)
    After:     %p = split_linear(x, @w) {splits=4};  %s, %n = add_norm(%p, r, @c, ..) {splits=4,
               bias=true}
    Requires:  fuse_add_norm has run.
    Ensures:   no such linear within the options' bounds remains.
    Numerics:  the same products in another order of summation; the branch is not rounded before
               the sum.
    """
    rewrite = Rewrite(graph)
    for _, node in rewrite.nodes("add_norm"):
        linear = rewrite.made_by(node.inputs[0], "linear")
        if linear is None or rewrite.only_reader(linear.output.name) is not node:
            continue
        assert isinstance(linear.attrs, LinearAttributes)
        assert isinstance(node.attrs, AddNormAttributes)
        if node.attrs.bias:
            continue
        splits = _splits(linear.output.type, rewrite.types[linear.inputs[1]], options)
        if splits < 2 or linear.attrs.activation != "none":
            continue
        _split(rewrite, linear, node, splits)
    return rewrite.finish()


def _splits(result: TensorType, weight: TensorType, options: SplitReductions) -> int:
    columns, k = weight.shape
    rows = result.element_count // columns
    for rule in options.rules:
        if rows <= rule.most_rows:
            tiles = -(-rows // rule.tile_rows) * -(-columns // rule.tile_columns)
            return max(1, min(options.programs // tiles, k // rule.least_k, options.most_splits))
    return 1


def _split(rewrite: Rewrite, linear: Node, node: Node, splits: int) -> None:
    assert isinstance(linear.attrs, LinearAttributes)
    assert isinstance(node.attrs, AddNormAttributes)
    x, weight, *bias = linear.inputs
    attributes = SplitLinearAttributes(splits=splits)
    partial = rewrite.make("split_linear", (x, weight), attributes, linear.origin)
    rewrite.replace(linear, partial)
    summed = replace(node.attrs, splits=splits, bias=linear.attrs.bias)
    inputs = (partial.output.name, node.inputs[1], *bias, *node.inputs[2:])
    rewrite.replace(node, replace(node, inputs=inputs, attrs=summed))
