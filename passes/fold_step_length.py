"""Fold the step length of a solver into the linear that gives the velocity."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.attributes import LinearAttributes, ScalarAttributes
from policyc.compiler.ir.graph import Collect, Graph, Loop, Node, Rate, Stage, Value
from policyc.passes.rewrite import Rewrite


def fold_step_length(graph: Graph) -> Graph:
    """Multiply a solver's step length into the linear that gives the velocity.

    Before:    %v = linear(h, @w, @b);  %n = add(x, mul_scalar(%v) {value=c});  collect %v -> vs
    After:     stage load { %w = mul_scalar(@w), %b = mul_scalar(@b) }
               %d = linear(h, %w, %b);  %n = add(x, %d);  collect %d -> ds
               stage report { vs = div_scalar(ds) {value=c} }
    Requires:  level traced; the velocity is read by that product alone, or collected for the
               report.
    Ensures:   no such product remains; named values keep their names.
    Numerics:  the same factors in another order, in float32; a reported velocity is divided out
               again.
    """
    rewrite = Rewrite(graph)
    collects: dict[str, float] = {}
    for stage, node in rewrite.nodes("mul_scalar"):
        linear = rewrite.made_by(node.inputs[0], "linear")
        if linear is None:
            continue
        attributes = node.attrs
        assert isinstance(attributes, ScalarAttributes)
        assert isinstance(linear.attrs, LinearAttributes)
        known = all(rewrite.is_load(name) for name in linear.inputs[1:])
        if linear.attrs.activation != "none" or not known:
            continue
        if rewrite.readers(linear.output.name) != [node]:
            continue
        if rewrite.is_read_outside(linear.output.name) and not _only_collected(stage, linear):
            continue
        x, *weights = linear.inputs
        scaled = [rewrite.load("mul_scalar", (w,), attributes, linear.origin) for w in weights]
        new = rewrite.make("linear", (x, *scaled), linear.attrs, linear.origin, node.output.name)
        rewrite.replace(node, new, claims=(linear,))
        collects[linear.output.name] = float(attributes.value)
    result = rewrite.finish()
    return _divided_out(result, graph, rewrite, collects)


def _only_collected(stage: Stage, linear: Node) -> bool:
    """Is the value read by the loop as a collected value, and not as the next carried one?"""
    loop = stage.loop
    name = linear.output.name
    if loop is None or any(carry.next == name for carry in loop.carries):
        return False
    return any(item.each == name for item in loop.collects)


def _divided_out(
    result: Graph, before: Graph, rewrite: Rewrite, factors: dict[str, float]
) -> Graph:
    """Collect the scaled value instead, and divide the factor out in the report stage."""
    scaled_names = _scaled_names(before, factors)
    stages: list[Stage] = []
    extra: list[Node] = []
    for stage in result.stages:
        loop = stage.loop
        if loop is not None and any(item.each in factors for item in loop.collects):
            loop, nodes = _rescaled(loop, factors, scaled_names, rewrite)
            extra.extend(nodes)
        dropped = {name for name in factors if loop is not None}
        kept = tuple(n for n in stage.nodes if n.outputs[0].name not in dropped)
        stages.append(replace(stage, loop=loop, nodes=kept))
    if not extra:
        return result
    if stages[-1].rate is not Rate.REPORT:
        stages.append(Stage(name="report", rate=Rate.REPORT, nodes=()))
    stages[-1] = replace(stages[-1], nodes=(*extra, *stages[-1].nodes))
    return result.with_stages(tuple(stages))


def _scaled_names(graph: Graph, factors: dict[str, float]) -> dict[str, str]:
    """Name of the velocity -> name of its product with the step length."""
    return {
        node.inputs[0]: node.output.name
        for node in graph.nodes()
        if node.op == "mul_scalar" and node.inputs[0] in factors
    }


def _rescaled(
    loop: Loop, factors: dict[str, float], names: dict[str, str], rewrite: Rewrite
) -> tuple[Loop, list[Node]]:
    collects, nodes = [], []
    for item in loop.collects:
        if item.each not in factors:
            collects.append(item)
            continue
        stacked = Value(name=rewrite.fresh(), type=item.stacked.type)
        rewrite.types[stacked.name] = stacked.type
        collects.append(Collect(each=names[item.each], stacked=stacked))
        attributes = ScalarAttributes(value=factors[item.each])
        name = item.stacked.name
        nodes.append(rewrite.make("div_scalar", (stacked.name,), attributes, "", name))
    return replace(loop, collects=tuple(collects)), nodes
