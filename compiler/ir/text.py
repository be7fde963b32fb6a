"""The text form of graphs: printer and parser, one the inverse of the other.

    input noise: f32[1,50,32] rate=observation
    weight @expert.in: f32[1024,32]
    output actions
    named v_t

    stage denoise rate=step (noise: f32[1,50,32]) -> (actions: f32[1,50,32], v_t: f32[10,1,50,32]) {
      loop count=10 index=%0: i32[]
      carry noise -> %1: f32[1,50,32], %3 -> actions: f32[1,50,32]
      collect %2 -> v_t: f32[10,1,50,32]
      %2: f32[1,50,32] = linear(%1, @expert.in) {dtype=f32}  # action_in_proj
      %3: f32[1,50,32] = add(%1, %2)
    }

The signature of a stage is derived from its nodes; the parser refuses one that does not agree
with them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

from policyc.compiler.ir.attributes import Instruction
from policyc.compiler.ir.graph import (
    Graph,
    Loop,
    Node,
    Stage,
    Value,
    stage_definitions,
    stage_inputs,
    stage_uses,
    value_types,
)
from policyc.compiler.ir.types import DType


def print_graph(graph: Graph) -> str:
    """The graph as text, ending in a newline."""
    lines = [f"input {item.value} rate={item.rate.text}" for item in graph.inputs]
    lines += [f"weight {weight}" for weight in graph.weights]
    lines += [f"output {name}" for name in graph.outputs]
    lines += [f"named {name}" for name in graph.named]
    for stage, head in zip(graph.stages, signatures(graph), strict=True):
        lines += ["", *_stage_lines(stage, head)]
    return "\n".join(lines) + "\n"


def print_stage(graph: Graph, stage: Stage) -> str:
    """One stage of the graph as text, without a final newline."""
    heads = zip(graph.stages, signatures(graph), strict=True)
    head = next(text for item, text in heads if item is stage)
    return "\n".join(_stage_lines(stage, head))


def signatures(graph: Graph) -> tuple[str, ...]:
    """`(inputs) -> (outputs)` of every stage, derived from the nodes, in time linear in them."""
    types = value_types(graph)
    readers: dict[str, set[int]] = {name: {-1} for name in (*graph.outputs, *graph.named)}
    for index, stage in enumerate(graph.stages):
        for name in stage_uses(stage):
            readers.setdefault(name, set()).add(index)
    found = []
    for index, stage in enumerate(graph.stages):
        names = (name for name in stage_inputs(stage) if name in types)
        inputs = ", ".join(f"{name}: {types[name]}" for name in names)
        values = stage_definitions(stage)
        read = (value for value in values if readers.get(value.name, set()) - {index})
        found.append(f"({inputs}) -> ({', '.join(map(str, read))})")
    return tuple(found)


def _stage_lines(stage: Stage, signature: str) -> list[str]:
    head = f"stage {stage.name} rate={stage.rate.text} {signature} {{"
    body = [] if stage.loop is None else _loop_lines(stage.loop)
    body += [print_node(node) for node in stage.nodes]
    return [head, *(f"  {line}" for line in body), "}"]


def _loop_lines(loop: Loop) -> list[str]:
    lines = [f"loop count={loop.count} index={loop.index}"]
    for carry in loop.carries:
        lines.append(f"carry {carry.initial} -> {carry.inner}, {carry.next} -> {carry.final}")
    lines += [f"collect {item.each} -> {item.stacked}" for item in loop.collects]
    return lines


def print_node(node: Node) -> str:
    """One node as one line."""
    results = ", ".join(str(value) for value in node.outputs)
    attributes = print_attributes(node.attrs)
    tail = f" {attributes}" if attributes else ""
    origin = f"  # {node.origin}" if node.origin else ""
    return f"{results} = {node.op}({', '.join(node.inputs)}){tail}{origin}"


def print_attributes(attributes: object) -> str:
    """`{name=value, ...}` with the fields that differ from their default; empty if none do."""
    assert dataclasses.is_dataclass(attributes)
    shown = []
    for item in dataclasses.fields(attributes):
        value = getattr(attributes, item.name)
        if item.default is dataclasses.MISSING or value != item.default:
            shown.append(f"{item.name}={_print_value(value)}")
    return f"{{{', '.join(shown)}}}" if shown else ""


def _print_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return value.value
    if isinstance(value, tuple):
        return f"[{', '.join(_print_value(item) for item in value)}]"
    if isinstance(value, Instruction):
        constant = "" if value.value is None else f"; {value.value!r}"
        return f"{value.op}({', '.join(map(str, value.arguments))}{constant})"
    if isinstance(value, str):
        return value
    assert isinstance(value, int | float), f"no text form for {value!r}"
    return repr(value)


@dataclass(frozen=True, slots=True)
class _Renaming:
    names: dict[str, str]

    def value(self, value: Value) -> Value:
        return replace(value, name=self.names[value.name])

    def name(self, name: str) -> str:
        return self.names.get(name, name)


def renumber(graph: Graph) -> Graph:
    """The same graph with its unnamed values numbered %0, %1, ... in order of definition."""
    values = [value for stage in graph.stages for value in stage_definitions(stage)]
    unnamed = [value.name for value in values if value.name.startswith("%")]
    names = {value.name: value.name for value in values}
    names.update((name, f"%{index}") for index, name in enumerate(unnamed))
    if all(old == new for old, new in names.items()):
        return graph
    renaming = _Renaming(names)
    return graph.with_stages(tuple(_renamed_stage(stage, renaming) for stage in graph.stages))


def _renamed_stage(stage: Stage, renaming: _Renaming) -> Stage:
    nodes = tuple(
        replace(
            node,
            inputs=tuple(renaming.name(name) for name in node.inputs),
            outputs=tuple(renaming.value(value) for value in node.outputs),
        )
        for node in stage.nodes
    )
    return replace(stage, nodes=nodes, loop=_renamed_loop(stage.loop, renaming))


def _renamed_loop(loop: Loop | None, renaming: _Renaming) -> Loop | None:
    if loop is None:
        return None
    carries = tuple(
        replace(
            carry,
            initial=renaming.name(carry.initial),
            inner=renaming.value(carry.inner),
            next=renaming.name(carry.next),
            final=renaming.value(carry.final),
        )
        for carry in loop.carries
    )
    collects = tuple(
        replace(item, each=renaming.name(item.each), stacked=renaming.value(item.stacked))
        for item in loop.collects
    )
    return replace(loop, index=renaming.value(loop.index), carries=carries, collects=collects)
