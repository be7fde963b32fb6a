"""Graphs: stages of nodes over named values.

A value is defined once in the whole graph (SSA across stages), so moving a node to another stage
needs no renaming. What a stage reads and yields is derived, never stored: see `stage_inputs` and
`stage_outputs`.

Names: `@weight` is a tensor of the checkpoint or bundle; `%12` is an unnamed value; anything
else (`noise`, `k.0`) is a value that the adapter named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum

from policyc.compiler.ir.types import TensorType


class Rate(IntEnum):
    """How often a stage runs; values flow only from slower (smaller) to faster (larger) rates.

    `LOAD` runs once per checkpoint, on the compile machine: its results are the bundle's weights.
    `REPORT` runs on the host after the rest, only for named intermediates that a caller asks for.
    """

    LOAD = 0
    PROMPT = 1
    OBSERVATION = 2
    STEP = 3
    REPORT = 4

    @property
    def text(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A named tensor: a graph input, a weight, a node's result or a loop's carried value."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation. `attrs` is an instance of the attribute dataclass in the op's row."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    attrs: object
    origin: str = field(default="", compare=False)

    @property
    def output(self) -> Value:
        """The only result; an internal error on a node with several."""
        assert len(self.outputs) == 1, f"{self.op} has {len(self.outputs)} results"
        return self.outputs[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carry:
    """A value that a loop hands from one step to the next.

    `initial` is read before the first step, `inner` is what the nodes see, `next` is what they
    yield, and `final` is the value after the last step.
    """

    initial: str
    inner: Value
    next: str
    final: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """A value of each step, stacked on a new first axis after the loop: `stacked[s] = each` of
    step s."""

    each: str
    stacked: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A stage that runs `count` times; `index` is the step number, `i32[]`."""

    count: int
    index: Value
    carries: tuple[Carry, ...] = ()
    collects: tuple[Collect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Nodes of one rate, in order."""

    name: str
    rate: Rate
    nodes: tuple[Node, ...]
    loop: Loop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A graph input and the rate at which it changes."""

    value: Value
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A policy: inputs, weights, stages in order of execution, and the values a caller can ask for.

    `outputs` are the results of one inference (`actions`); `named` are further values that can
    be asked for.
    """

    inputs: tuple[Input, ...]
    weights: tuple[Value, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    named: tuple[str, ...] = ()

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"no stage {name}; there are {[stage.name for stage in self.stages]}")

    def nodes(self) -> Iterator[Node]:
        for stage in self.stages:
            yield from stage.nodes

    def with_stages(self, stages: tuple[Stage, ...]) -> Graph:
        return replace(self, stages=stages)


def is_weight(name: str) -> bool:
    """Does the name denote a tensor of the checkpoint or bundle?"""
    return name.startswith("@")


def stage_definitions(stage: Stage) -> tuple[Value, ...]:
    """Every value that the stage defines, loop values included, in order."""
    values: list[Value] = []
    loop = stage.loop
    if loop is not None:
        values.append(loop.index)
        values.extend(carry.inner for carry in loop.carries)
    for node in stage.nodes:
        values.extend(node.outputs)
    if loop is not None:
        values.extend(carry.final for carry in loop.carries)
        values.extend(collect.stacked for collect in loop.collects)
    return tuple(values)


def stage_uses(stage: Stage) -> tuple[str, ...]:
    """Every name that the stage reads, loop values included, in order, with repeats."""
    names: list[str] = []
    loop = stage.loop
    if loop is not None:
        names.extend(carry.initial for carry in loop.carries)
    for node in stage.nodes:
        names.extend(node.inputs)
    if loop is not None:
        names.extend(carry.next for carry in loop.carries)
        names.extend(collect.each for collect in loop.collects)
    return tuple(names)


def stage_inputs(stage: Stage) -> tuple[str, ...]:
    """Names that the stage reads and does not define, weights left out, in order of first use."""
    own = {value.name for value in stage_definitions(stage)}
    names = (name for name in stage_uses(stage) if name not in own and not is_weight(name))
    return tuple(dict.fromkeys(names))


def stage_outputs(graph: Graph, stage: Stage) -> tuple[Value, ...]:
    """Values of the stage that a later stage or the caller reads, in order of definition."""
    wanted = {*graph.outputs, *graph.named}
    for other in graph.stages:
        if other is not stage:
            wanted.update(stage_uses(other))
    return tuple(value for value in stage_definitions(stage) if value.name in wanted)


def value_types(graph: Graph) -> dict[str, TensorType]:
    """Name -> type for every input, weight and value of the graph."""
    types = {item.value.name: item.value.type for item in graph.inputs}
    types.update((weight.name, weight.type) for weight in graph.weights)
    for stage in graph.stages:
        types.update((value.name, value.type) for value in stage_definitions(stage))
    return types
