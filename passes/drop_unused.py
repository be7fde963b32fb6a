"""Drop what no output needs."""

from __future__ import annotations

from policyc.compiler.ir.graph import Graph
from policyc.passes.rewrite import remove_dead


def drop_unused(graph: Graph) -> Graph:
    """Remove nodes, collected loop values, weights and stages that no output or named value needs.

    Before:    %k = linear(x, @k);  %a = attention(..);  %y = linear(%a, @o)      only %k is read
               later
    After:     %k = linear(x, @k)
    Requires:  nothing.
    Ensures:   every node's result is read; graph inputs and outputs unchanged.
    Numerics:  exact.
    """
    result = remove_dead(graph)
    return graph if result == graph else result
