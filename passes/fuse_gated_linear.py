"""Compute a gated product in one matrix product."""

from __future__ import annotations

from policyc.compiler.ir.attributes import (
    AxisAttributes,
    GatedLinearAttributes,
    LinearAttributes,
    ShapeAttributes,
)
from policyc.compiler.ir.graph import Graph, Node
from policyc.passes.rewrite import Rewrite

ACTIVATIONS = ("gelu_tanh", "silu")


def fuse_gated_linear(graph: Graph) -> Graph:
    """Merge two linears of one input that feed a gated product.

    Before:    %g = linear(x, @g);  %u = linear(x, @u);  %y = mul(silu(%g), %u)
    After:     stage load { %w = rows of @g and @u in turn };  %y = gated_linear(x, %w)
               {activation=silu}
    Requires:  level traced.
    Ensures:   no such pair without biases remains.
    Numerics:  same products and sums.
    """
    rewrite = Rewrite(graph)
    for _, node in rewrite.nodes("mul"):
        for gate_name, up_name in (node.inputs, node.inputs[::-1]):
            act = rewrite.made_by(gate_name, *ACTIVATIONS)
            gate = None if act is None else rewrite.made_by(act.inputs[0], "linear")
            up = rewrite.made_by(up_name, "linear")
            if act is None or gate is None or up is None or not _is_pair(rewrite, act, gate, up):
                continue
            weight = _interleaved(rewrite, gate, up)
            attributes = GatedLinearAttributes(activation=act.op, dtype=node.output.type.dtype)
            inputs = (gate.inputs[0], weight)
            new = rewrite.make("gated_linear", inputs, attributes, gate.origin, node.output.name)
            rewrite.replace(node, new, claims=(act, gate, up))
            break
    return rewrite.finish()


def _is_pair(rewrite: Rewrite, act: Node, gate: Node, up: Node) -> bool:
    plain = LinearAttributes(dtype=gate.output.type.dtype)
    if gate.attrs != plain or up.attrs != plain or gate.inputs[0] != up.inputs[0]:
        return False
    same_shape = rewrite.types[gate.inputs[1]] == rewrite.types[up.inputs[1]]
    weights = all(rewrite.is_load(item.inputs[1]) for item in (gate, up))
    single = all(rewrite.only_reader(item.output.name) is not None for item in (act, gate, up))
    return same_shape and weights and single


def _interleaved(rewrite: Rewrite, gate: Node, up: Node) -> str:
    """Rows g0, u0, g1, u1, ... of the two weights [N, K] as [2N, K]."""
    rows, columns = rewrite.types[gate.inputs[1]].shape
    pair = (gate.inputs[1], up.inputs[1])
    stacked = rewrite.load("stack", pair, AxisAttributes(axis=1), gate.origin)
    shape = ShapeAttributes(shape=(2 * rows, columns))
    return rewrite.load("reshape", (stacked,), shape, gate.origin)
