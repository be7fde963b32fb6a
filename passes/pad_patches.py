"""Pad the columns of patches so that rows are aligned."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import PadAttributes, PatchifyAttributes
from policyc.compiler.ir.graph import Graph, Node
from policyc.passes.rewrite import Rewrite

COLUMN_MULTIPLE = 16
"""16 bfloat16 values are 32 bytes: rows start where 16-byte accesses and tensor maps may."""


def pad_patches(graph: Graph) -> Graph:
    """Append zero columns to patches, and to the weight of the linear that reads them.

    Before:    %p = patchify(images) {columns=588};  %y = linear(%p, @w)
    After:     stage load { %w = pad(@w) {count=4} }
               %p = patchify(images) {columns=592};  %y = linear(%p, %w)
    Requires:  level traced.
    Ensures:   the columns of patches that linears alone read are a multiple of 16.
    Numerics:  exact: the products added are zero.
    """
    rewrite = Rewrite(graph)
    for _, node in rewrite.nodes("patchify"):
        assert isinstance(node.attrs, PatchifyAttributes)
        missing = -node.attrs.columns % COLUMN_MULTIPLE
        readers = rewrite.readers(node.output.name)
        linears = all(_can_be_padded(rewrite, r, node.output.name) for r in readers)
        if missing == 0 or not linears or rewrite.is_read_outside(node.output.name):
            continue
        attributes = replace(node.attrs, columns=node.attrs.columns + missing)
        wider = rewrite.make("patchify", node.inputs, attributes, node.origin, node.output.name)
        rewrite.replace(node, wider)
        for reader in readers:
            x, weight, *bias = reader.inputs
            padded = rewrite.load("pad", (weight,), PadAttributes(count=missing), reader.origin)
            rewrite.replace(reader, replace(reader, inputs=(x, padded, *bias)))
    return rewrite.finish()


def _can_be_padded(rewrite: Rewrite, reader: Node, name: str) -> bool:
    """Is the reader a linear of the value, with a weight that is known once the checkpoint is?"""
    return reader.op == "linear" and reader.inputs[0] == name and rewrite.is_load(reader.inputs[1])
