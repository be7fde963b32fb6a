"""Write out the steps of a solver's loop."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import AxisAttributes, RowAttributes
from policyc.compiler.ir.graph import Collect, Graph, Loop, Node, Rate, Stage, Value


def unroll_solver(graph: Graph) -> Graph:
    """Replace a loop by its steps, one after the other, so that the whole chunk is one replay.

    Before:    stage denoise rate=step { loop count=2 index=%i; carry noise -> x, %n -> actions
                 %t = table_row(@table, %i);  %n = add(x, %t) }
    After:     stage denoise rate=step { %t.0 = row(@table) {index=0};  %n.0 = add(noise, %t.0)
                 %t.1 = row(@table) {index=1};  actions = add(%n.0, %t.1) }
    Requires:  only table_row reads the step number (fold_constants).
    Ensures:   no loop remains; a collected value is stacked in the report stage.
    Numerics:  exact.
    """
    stages: list[Stage] = []
    stacks: list[Node] = []
    for stage in graph.stages:
        if stage.loop is None:
            stages.append(stage)
        else:
            unrolled, collected = _unrolled(stage, stage.loop)
            stages.append(unrolled)
            stacks.extend(collected)
    if stages == list(graph.stages):
        return graph
    return graph.with_stages(_with_stacks(tuple(stages), stacks))


def _with_stacks(stages: tuple[Stage, ...], stacks: list[Node]) -> tuple[Stage, ...]:
    if not stacks:
        return stages
    if stages[-1].rate is Rate.REPORT:
        report = replace(stages[-1], nodes=(*stacks, *stages[-1].nodes))
        return (*stages[:-1], report)
    return (*stages, Stage(name="report", rate=Rate.REPORT, nodes=tuple(stacks)))


def _unrolled(stage: Stage, loop: Loop) -> tuple[Stage, list[Node]]:
    names = {carry.inner.name: carry.initial for carry in loop.carries}
    collected: dict[str, list[str]] = {item.stacked.name: [] for item in loop.collects}
    nodes: list[Node] = []
    for step in range(loop.count):
        finals = {}
        if step == loop.count - 1:
            finals = {carry.next: carry.final.name for carry in loop.carries}
        for node in stage.nodes:
            nodes.append(_copy(node, loop, step, names, finals))
        for item in loop.collects:
            collected[item.stacked.name].append(names[item.each])
        following = {carry.inner.name: names[carry.next] for carry in loop.carries}
        names.update(following)
    stacks = [_stack(item, collected[item.stacked.name]) for item in loop.collects]
    return replace(stage, nodes=tuple(nodes), loop=None), stacks


def _copy(node: Node, loop: Loop, step: int, names: dict[str, str], finals: dict[str, str]) -> Node:
    """The node of one step; adds the names of its results to `names`."""
    for value in node.outputs:
        names[value.name] = finals.get(value.name, f"%{value.name.lstrip('%')}.{step}")
    outputs = tuple(replace(value, name=names[value.name]) for value in node.outputs)
    if node.op == "table_row" and node.inputs[1] == loop.index.name:
        attributes = RowAttributes(index=step)
        return replace(node, op="row", inputs=node.inputs[:1], outputs=outputs, attrs=attributes)
    assert loop.index.name not in node.inputs, f"{node.op} reads the step number"
    inputs = tuple(names.get(name, name) for name in node.inputs)
    return replace(node, inputs=inputs, outputs=outputs)


def _stack(item: Collect, names: list[str]) -> Node:
    value: Value = item.stacked
    attributes = AxisAttributes(axis=0)
    return Node(op="stack", inputs=tuple(names), outputs=(value,), attrs=attributes)
