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
class SplitReductions:
    """Options: products of at most `most_rows` rows are cut so that about `programs` tiles of
    `tile_columns` columns run side by side, each over at least `least_k` of the reduction."""

    most_rows: int = 64
    programs: int = 132
    tile_columns: int = 64
    least_k: int = 256
    most_splits: int = 8


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
        splits = _splits(linear.output.type, rewrite.types[linear.inputs[1]], options)
        if splits < 2 or linear.attrs.activation != "none":
            continue
        _split(rewrite, linear, node, splits)
    return rewrite.finish()


def _splits(result: TensorType, weight: TensorType, options: SplitReductions) -> int:
    columns, k = weight.shape
    rows = result.element_count // columns
    if rows > options.most_rows:
        return 1
    tiles = -(-columns // options.tile_columns)
    wanted = -(-options.programs // tiles)
    return max(1, min(wanted, k // options.least_k, options.most_splits))


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
