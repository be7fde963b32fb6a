"""Move work to the slowest rate at which it is still valid."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.graph import Graph, Node, Rate, Stage
from policyc.passes.rewrite import LOAD_STAGE

NEW_STAGE_NAMES = {Rate.LOAD: LOAD_STAGE, Rate.PROMPT: "prompt", Rate.OBSERVATION: "observation"}


def hoist_invariants(graph: Graph) -> Graph:
    """Move each node to the last stage of the slowest rate that all its operands have.

    Before:    stage denoise rate=step { %k = linear(context, @k);  %q = linear(x, @q) }
    After:     stage prefix rate=observation { %k = linear(context, @k) }
               stage denoise rate=step { %q = linear(x, @q) }
    Requires:  nothing.
    Ensures:   no node outside the report stage could run at a slower rate; graph inputs and
               outputs unchanged.
    Numerics:  exact.
    """
    rates = _rates(graph)
    moved: dict[Rate, list[Node]] = {}
    stages: list[Stage] = []
    for stage in graph.stages:
        kept: list[Node] = []
        for node in stage.nodes:
            rate = _slowest(node, rates) if stage.rate is not Rate.REPORT else stage.rate
            rates.update((value.name, rate) for value in node.outputs)
            (kept if rate == stage.rate else moved.setdefault(rate, [])).append(node)
        stages.append(replace(stage, nodes=tuple(kept)))
    if not moved:
        return graph
    for rate, nodes in sorted(moved.items()):
        stages = _with_nodes(stages, rate, nodes)
    return graph.with_stages(tuple(s for s in stages if s.nodes or s.loop is not None))


def _rates(graph: Graph) -> dict[str, Rate]:
    """Rates of everything that is not a node's result."""
    rates = {item.value.name: item.rate for item in graph.inputs}
    rates.update((weight.name, Rate.LOAD) for weight in graph.weights)
    for stage in graph.stages:
        loop = stage.loop
        if loop is not None:
            rates[loop.index.name] = stage.rate
            rates.update((carry.inner.name, stage.rate) for carry in loop.carries)
            rates.update((carry.final.name, stage.rate) for carry in loop.carries)
            rates.update((item.stacked.name, stage.rate) for item in loop.collects)
    return rates


def _slowest(node: Node, rates: dict[str, Rate]) -> Rate:
    return max((rates[name] for name in node.inputs), default=Rate.LOAD)


def _with_nodes(stages: list[Stage], rate: Rate, nodes: list[Node]) -> list[Stage]:
    """Append the nodes to the last stage of the rate, or make one in its place."""
    for index in reversed(range(len(stages))):
        if stages[index].rate == rate:
            grown = replace(stages[index], nodes=(*stages[index].nodes, *nodes))
            return [*stages[:index], grown, *stages[index + 1 :]]
    at = sum(stage.rate < rate for stage in stages)
    return [
        *stages[:at],
        Stage(name=NEW_STAGE_NAMES[rate], rate=rate, nodes=tuple(nodes)),
        *stages[at:],
    ]
