"""Prove a memory plan by running the graph on intervals of bytes instead of numbers.

Shares no code with the planner and knows no lifetimes: each launch checks that the bytes of its
operands still hold the value that was written there, then stamps its results. What a plan got wrong
shows as a value that was overwritten, or never written, when it is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from policyc.compiler.ir.graph import Graph, Node, Rate, is_weight, value_types
from policyc.compiler.ir.memory import Allocation, MemoryPlan
from policyc.compiler.ir.ops import row_of

_ALIGNMENT = 256
_COUNTERS = "counters"


class PlanCheckError(Exception):
    """A memory plan that would compute something else: our bug, never the user's."""


@dataclass(slots=True)
class _Tape:
    """Who wrote each byte of an arena last: disjoint intervals in order."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)

    def write(self, start: int, end: int, tag: str) -> None:
        low, high = bisect_right(self.ends, start), bisect_left(self.starts, end)
        pieces = [(start, end, tag)]
        if low < high:
            if self.starts[low] < start:
                pieces.insert(0, (self.starts[low], start, self.tags[low]))
            if self.ends[high - 1] > end:
                pieces.append((end, self.ends[high - 1], self.tags[high - 1]))
        self.starts[low:high] = [piece[0] for piece in pieces]
        self.ends[low:high] = [piece[1] for piece in pieces]
        self.tags[low:high] = [piece[2] for piece in pieces]

    def fault(self, start: int, end: int, tag: str) -> str:
        """Why the bytes do not all hold `tag`; empty if they do."""
        index = bisect_right(self.ends, start)
        while start < end:
            if index == len(self.starts) or self.starts[index] > start:
                return f"byte {start} was never written"
            if self.tags[index] != tag:
                return f"byte {start} was overwritten by {self.tags[index]}"
            start = self.ends[index]
            index += 1
        return ""


def check_plan(graph: Graph, plan: MemoryPlan) -> None:
    """Raise PlanCheckError unless the plan keeps every value intact until its last reader.

    Checked: each value that owns memory has an allocation of its size in the arena of its stage's
    rate, aligned and inside; operands, results and workspace of one launch are disjoint; every
    operand was written and not overwritten since; what the host reads, the graph inputs and what a
    faster stage read are intact after the last launch; so are the counters, which belong to nodes
    of the graph and lie in an arena without anything else.
    """
    _Run(graph, plan).check()


class _Run:
    def __init__(self, graph: Graph, plan: MemoryPlan) -> None:
        self.graph, self.plan = graph, plan
        self.types = value_types(graph)
        self.tapes = {arena: _Tape() for arena in plan.arenas}
        self.storage: dict[str, str] = {}
        self.lasting: dict[str, str] = {}
        self.arena_of: dict[str, str] = {}

    def check(self) -> None:
        for item in self.graph.inputs:
            self.own(item.value.name, item.rate.text, "graph input")
            self.lasting[item.value.name] = "the caller"
        for name, allocation in self.plan.counters.items():
            self.count(name, allocation)
        for stage in self.graph.stages:
            where = f"stage {stage.name}"
            for node in stage.nodes:
                if stage.rate is Rate.REPORT:
                    self.outlive(node.inputs, where)
                else:
                    self.launch(node, stage.rate.text, f"{where}, {node.outputs[0].name} {node.op}")
        self.outlive((*self.graph.outputs, *self.graph.named), "the caller")
        for name, reader in self.lasting.items():
            self.expect(name, f"after the last launch, for {reader}")
        for name, allocation in self.plan.counters.items():
            self.require_intact(
                f"counters of {name}", allocation, "after the last launch, for the next run"
            )

    def count(self, name: str, allocation: Allocation) -> None:
        if allocation.arena != _COUNTERS:
            raise PlanCheckError(
                f"counters of {name}: in arena {allocation.arena}, expected {_COUNTERS}."
            )
        if name not in self.types:
            raise PlanCheckError(f"counters of {name}: no such node.")
        self.stamp(f"counters of {name}", allocation, "at load")

    def launch(self, node: Node, arena: str, where: str) -> None:
        name = node.outputs[0].name
        if row_of(node.op).view and name not in self.plan.copies:
            base = node.inputs[0]
            self.storage[name] = base if is_weight(base) else self.stored(base, where)
            return
        operands = [
            self.stored(operand, where) for operand in node.inputs if not is_weight(operand)
        ]
        held = [operand for operand in operands if not is_weight(operand)]
        for operand in held:
            self.expect(operand, where)
        written = [self.own(value.name, arena, where) for value in node.outputs]
        if name in self.plan.scratch:
            self.stamp(f"workspace of {name}", self.plan.scratch[name], where)
        # Read again: results and workspace must not have fallen on operands or on one another.
        for operand in (*held, *written):
            self.expect(operand, f"{where}, during the launch")
        for operand in held:
            if self.arena_of[operand] != arena:
                self.lasting[operand] = f"the faster {where}"

    def outlive(self, names: tuple[str, ...], reader: str) -> None:
        for name in names:
            owner = self.storage.get(name, name)
            if owner in self.arena_of:
                self.lasting[owner] = reader

    def stored(self, name: str, where: str) -> str:
        if name not in self.storage:
            raise PlanCheckError(f"{where}: reads {name}, which nothing wrote before.")
        return self.storage[name]

    def own(self, name: str, arena: str, where: str) -> str:
        allocation = self.plan.values.get(name)
        if allocation is None:
            raise PlanCheckError(f"{where}: {name} has no allocation.")
        expected = self.types[name].size_bytes
        if (allocation.arena, allocation.size) != (arena, expected):
            raise PlanCheckError(
                f"{where}: {name} has {allocation.size} bytes in arena {allocation.arena}, "
                f"expected {expected} in {arena}."
            )
        self.stamp(name, allocation, where)
        self.storage[name] = name
        self.arena_of[name] = arena
        return name

    def stamp(self, tag: str, allocation: Allocation, where: str) -> None:
        start, end = allocation.offset, allocation.offset + allocation.size
        capacity = self.plan.arenas.get(allocation.arena)
        if capacity is None:
            raise PlanCheckError(f"{where}: {tag} lies in arena {allocation.arena}, there is none.")
        if start % _ALIGNMENT:
            raise PlanCheckError(f"{where}: {tag} starts at byte {start}, not a multiple of 256.")
        if start < 0 or end > capacity:
            raise PlanCheckError(
                f"{where}: {tag} takes bytes {start}..{end} of arena {allocation.arena}, "
                f"which has {capacity}."
            )
        self.tapes[allocation.arena].write(start, end, tag)

    def expect(self, owner: str, where: str) -> None:
        self.require_intact(owner, self.plan.values[owner], where)

    def require_intact(self, tag: str, allocation: Allocation, where: str) -> None:
        start, end = allocation.offset, allocation.offset + allocation.size
        fault = self.tapes[allocation.arena].fault(start, end, tag)
        if fault:
            raise PlanCheckError(f"{where}: {tag} is not intact: {fault} of {allocation.arena}.")
