"""Rotate neighbouring heads in one launch."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import ShapeAttributes, SliceAttributes
from policyc.compiler.ir.graph import Graph, Node
from policyc.passes.rewrite import Rewrite

HEAD_AXIS = 2


def merge_rope(graph: Graph) -> Graph:
    """Merge rotary embeddings of adjacent slices of one projection.

    Before:    %q = rope(reshape(slice(%y) {stop=a}), c, s);  %k = rope(reshape(slice(%y)
               {start=a}), c, s)
    After:     %r = rope(reshape(slice(%y) {stop=b}), c, s);  %q = slice(%r), %k = slice(%r) by
               heads
    Requires:  merge_projections has run, so that the slices have one source.
    Ensures:   no two such ropes with the same tables and start remain.
    Numerics:  exact.
    """
    rewrite = Rewrite(graph)
    waiting: dict[tuple[object, ...], tuple[Node, Node]] = {}
    for _, node in rewrite.nodes("rope"):
        source = _source(rewrite, node)
        if source is None:
            continue
        key = (source.inputs[0], node.inputs[1:], node.attrs, node.output.type.shape[3])
        previous = waiting.pop(key, None)
        if previous is not None and _is_adjacent(previous[1], source):
            _merge(rewrite, previous[0], node, previous[1], source)
        else:
            waiting[key] = (node, source)
    return rewrite.finish()


def _source(rewrite: Rewrite, node: Node) -> Node | None:
    """The slice of a projection's columns that the rope reads, reshaped to heads."""
    heads = rewrite.made_by(node.inputs[0], "reshape")
    part = None if heads is None else rewrite.made_by(heads.inputs[0], "slice")
    if part is None:
        return None
    assert isinstance(part.attrs, SliceAttributes)
    return part if part.attrs.axis == part.output.type.rank - 1 else None


def _is_adjacent(first: Node, second: Node) -> bool:
    assert isinstance(first.attrs, SliceAttributes) and isinstance(second.attrs, SliceAttributes)
    return first.attrs.stop == second.attrs.start


def _merge(rewrite: Rewrite, q: Node, k: Node, q_part: Node, k_part: Node) -> None:
    """Rotate both at the place of the first rope; the second keeps a slice of the result."""
    assert isinstance(q_part.attrs, SliceAttributes) and isinstance(k_part.attrs, SliceAttributes)
    columns = replace(q_part.attrs, stop=k_part.attrs.stop)
    part = rewrite.make("slice", q_part.inputs, columns, q_part.origin)
    batch, rows, q_heads, width = q.output.type.shape
    heads = q_heads + k.output.type.shape[HEAD_AXIS]
    shape = ShapeAttributes(shape=(batch, rows, heads, width))
    reshaped = rewrite.make("reshape", (part.output.name,), shape, q.origin)
    inputs = (reshaped.output.name, *q.inputs[1:])
    rotated = rewrite.make("rope", inputs, q.attrs, q.origin)
    source = (rotated.output.name,)
    first = SliceAttributes(axis=HEAD_AXIS, start=0, stop=q_heads)
    second = SliceAttributes(axis=HEAD_AXIS, start=q_heads, stop=heads)
    q_slice = replace(q, op="slice", inputs=source, attrs=first)
    rewrite.replace(q, part, reshaped, rotated, q_slice)
    rewrite.replace(k, replace(k, op="slice", inputs=source, attrs=second))
