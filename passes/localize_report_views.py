"""Let the report stages read values that own memory, instead of windows on them."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.graph import Graph, Node, Rate, Stage, Value
from policyc.compiler.ir.ops import row_of


def localize_report_views(graph: Graph) -> Graph:
    """Repeat in a report stage the view ops whose results it reads from the stages of the device.

    Before:    stage observe { %v = slice(qkv) };  stage report { %r = scatter_rows(%v, mask) }
    After:     stage observe { %v = slice(qkv) };
               stage report { %w = slice(qkv);  %r = scatter_rows(%w, mask) }
    Requires:  level scheduled.
    Ensures:   report stages read no result of a view op of another stage; the device need not copy
               windows to memory of their own for them.
    Numerics:  exact.
    """
    views = {
        node.output.name: node
        for stage in graph.stages
        if stage.rate is not Rate.REPORT
        for node in stage.nodes
        if row_of(node.op).view
    }
    stages = tuple(
        _localize(stage, views) if stage.rate is Rate.REPORT else stage for stage in graph.stages
    )
    if all(new is old for new, old in zip(stages, graph.stages, strict=True)):
        return graph
    return graph.with_stages(stages)


def _localize(stage: Stage, views: dict[str, Node]) -> Stage:
    wanted = [name for node in stage.nodes for name in node.inputs if name in views]
    if not wanted:
        return stage
    copies: dict[str, Node] = {}
    for name in wanted:
        _repeat(name, stage, views, copies)
    names = {name: copy.output.name for name, copy in copies.items()}
    nodes = (
        replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))
        for node in stage.nodes
    )
    return replace(stage, nodes=(*copies.values(), *nodes))


def _repeat(name: str, stage: Stage, views: dict[str, Node], copies: dict[str, Node]) -> None:
    """Add the view `name` and the views that it looks through to `copies`, bases first."""
    if name in copies:
        return
    node = views[name]
    base = node.inputs[0]
    if base in views:
        _repeat(base, stage, views, copies)
        base = copies[base].output.name
    output = Value(name=f"%{stage.name}.{name}", type=node.output.type)
    copies[name] = replace(node, inputs=(base, *node.inputs[1:]), outputs=(output,))
