"""Compute linears of one input as one matrix product."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import (
    AxisAttributes,
    LinearAttributes,
    SliceAttributes,
)
from policyc.compiler.ir.graph import Graph, Node, Stage
from policyc.passes.rewrite import Rewrite


def merge_projections(graph: Graph) -> Graph:
    """Concatenate the weights of linears that read one value in one stage.

    Before:    %q = linear(x, @q);  %k = linear(x, @k);  %v = linear(x, @v)
    After:     stage load { %w = concat(@q, @k, @v) }
               %y = linear(x, %w);  %q = slice(%y), %k = slice(%y), %v = slice(%y)
    Requires:  level traced; the linears have no activation.
    Ensures:   no two such linears with weights of the load stage share an input.
    Numerics:  same products and sums.
    """
    rewrite = Rewrite(graph)
    groups: dict[tuple[str, str, object], list[Node]] = {}
    for stage, node in rewrite.nodes("linear"):
        assert isinstance(node.attrs, LinearAttributes)
        known = all(rewrite.is_load(name) for name in node.inputs[1:])
        if node.attrs.activation == "none" and known:
            groups.setdefault(_key(stage, node), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _merge(rewrite, nodes)
    return rewrite.finish()


def _key(stage: Stage, node: Node) -> tuple[str, str, object]:
    return stage.name, node.inputs[0], node.attrs


def _merge(rewrite: Rewrite, nodes: list[Node]) -> None:
    first = nodes[0]
    assert isinstance(first.attrs, LinearAttributes)
    origin = merged_origin(tuple(node.origin for node in nodes))
    joined = []
    for position in range(1, len(first.inputs)):
        names = tuple(node.inputs[position] for node in nodes)
        joined.append(rewrite.load("concat", names, AxisAttributes(axis=0), origin))
    merged = rewrite.make("linear", (first.inputs[0], *joined), first.attrs, origin)
    start = 0
    for index, node in enumerate(nodes):
        width = node.output.type.shape[-1]
        attributes = SliceAttributes(
            axis=node.output.type.rank - 1, start=start, stop=start + width
        )
        part = replace(node, op="slice", inputs=(merged.output.name,), attrs=attributes)
        rewrite.replace(node, *((merged, part) if index == 0 else (part,)))
        start += width


def merged_origin(origins: tuple[str, ...]) -> str:
    """`a.q_proj`, `a.k_proj` -> `a.q_proj+k_proj`."""
    parents = {origin.rpartition(".")[0] for origin in origins}
    if len(parents) != 1:
        return "+".join(origins)
    parent = parents.pop()
    names = "+".join(origin.rpartition(".")[2] for origin in origins)
    return f"{parent}.{names}" if parent else names
