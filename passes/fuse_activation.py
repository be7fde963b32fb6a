"""Apply an activation in the epilogue of its linear."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import LinearAttributes
from policyc.compiler.ir.graph import Graph
from policyc.passes.rewrite import Rewrite


def fuse_activation(graph: Graph) -> Graph:
    """Merge a linear with the activation that alone reads it.

    Before:    %y = gelu_tanh(linear(x, @w, @b))
    After:     %y = linear(x, @w, @b) {activation=gelu_tanh}
    Requires:  level traced.
    Ensures:   no such pair remains.
    Numerics:  exact.
    """
    rewrite = Rewrite(graph)
    for _, node in rewrite.nodes("gelu_tanh", "silu"):
        linear = rewrite.made_by(node.inputs[0], "linear")
        if linear is None or rewrite.only_reader(linear.output.name) is not node:
            continue
        assert isinstance(linear.attrs, LinearAttributes)
        if linear.attrs.activation != "none":
            continue
        attributes = replace(linear.attrs, activation=node.op)
        rewrite.replace(node, replace(linear, attrs=attributes, outputs=node.outputs))
    return rewrite.finish()
