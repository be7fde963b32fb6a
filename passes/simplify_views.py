"""Remove views that change nothing and merge chains of reshapes."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.graph import Graph, Node
from policyc.passes.rewrite import Rewrite


def simplify_views(graph: Graph) -> Graph:
    """Let a reshape read what the reshapes before it read.

    Before:    %a = reshape(x) {shape=[1, 768, 72]};  %b = reshape(%a) {shape=[3, 256, 72]}
    After:     %b = reshape(x) {shape=[3, 256, 72]}
    Requires:  nothing.
    Ensures:   no reshape reads a reshape.
    Numerics:  exact.
    """
    rewrite = Rewrite(graph)
    for _, node in rewrite.nodes("reshape"):
        source = _reshape_source(rewrite, node)
        if source != node.inputs[0]:
            rewrite.replace(node, replace(node, inputs=(source,)))
    return rewrite.finish()


def _reshape_source(rewrite: Rewrite, node: Node) -> str:
    name = node.inputs[0]
    producer = rewrite.producer(name)
    while producer is not None and producer.op == "reshape":
        name = producer.inputs[0]
        producer = rewrite.producer(name)
    return name
