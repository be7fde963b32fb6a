"""Fold the weight of a norm into the linears behind it."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import NoAttributes
from policyc.compiler.ir.graph import Graph, Node
from policyc.passes.rewrite import Rewrite


def fold_norm_weights(graph: Graph) -> Graph:
    """Multiply a norm's weight into the columns of the linears that read it.

    Before:    %h = mul(rms_norm(x), %s);  %y = linear(%h, @w)          %s a vector of the load
               stage
    After:     stage load { %v = mul(@w, %s) };  %y = linear(rms_norm(x), %v)
    Requires:  level traced; hoist_invariants has run.
    Ensures:   no such product remains whose readers are all linears.
    Numerics:  the same factors in another order, in float32, before any rounding of the weight.
    """
    rewrite = Rewrite(graph)
    for _, node in rewrite.nodes("mul"):
        norm_name, scale = node.inputs
        norm = rewrite.made_by(norm_name, "rms_norm")
        readers = rewrite.readers(node.output.name)
        foldable = norm is not None and rewrite.is_load(scale) and _is_vector(rewrite, scale, node)
        if not foldable or rewrite.is_read_outside(node.output.name):
            continue
        if not readers or not all(_takes_factor(rewrite, r, node.output.name) for r in readers):
            continue
        for reader in readers:
            _, weight, *bias = reader.inputs
            scaled = rewrite.load("mul", (weight, scale), NoAttributes(), reader.origin)
            rewrite.replace(reader, replace(reader, inputs=(norm_name, scaled, *bias)))
    return rewrite.finish()


def _takes_factor(rewrite: Rewrite, reader: Node, name: str) -> bool:
    """Is the reader a linear of the value, with a weight that is known once the checkpoint is?"""
    return reader.op == "linear" and reader.inputs[0] == name and rewrite.is_load(reader.inputs[1])


def _is_vector(rewrite: Rewrite, name: str, node: Node) -> bool:
    return rewrite.types[name].shape == node.output.type.shape[-1:]
