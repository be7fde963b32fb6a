"""Give every value of a scheduled graph its place in an arena."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from policyc.compiler.ir.graph import Graph, Node, is_weight
from policyc.compiler.ir.memory import (
    ALIGNMENT_BYTES,
    COUNTERS_ARENA,
    Allocation,
    MemoryPlan,
)
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.sequence import device_sequence, host_reads

_SCRATCH_PREFIX = "scratch of "


@dataclass(slots=True, kw_only=True)
class _Buffer:
    """Bytes that are needed from launch `first` to launch `last`, both included."""

    name: str
    arena: str
    size: int
    first: int
    last: int
    offset: int = 0

    @property
    def end(self) -> int:
        return self.offset + _aligned(self.size)


def plan_memory(
    graph: Graph,
    scratch: Mapping[str, int] | None = None,
    copies: frozenset[str] = frozenset(),
    counters: Mapping[str, int] | None = None,
) -> MemoryPlan:
    """Place values by lifetime: one arena a rate, large buffers first, each in the tightest gap.

    A value lives from the launch that writes it to the last launch that reads it or a view of it.
    To the end live: what the host reads, and what a stage of a faster rate reads, so that a slower
    stage need not run again before each faster one. Graph inputs live throughout. No two values
    that are alive at the same launch share bytes, hence no operation works in place. Counters lie
    one after another in an arena of their own.

    Args:
        graph: scheduled graph without loops and without load stage.
        scratch: bytes of workspace by node (the name of its first result).
        copies: results of view ops that are copied, hence own memory.
        counters: bytes that the launches of a node count in, by node.

    Raises:
        VerifyError: the graph has a loop or a load stage.
    """
    buffers = _lifetimes(graph, scratch or {}, copies)
    by_arena: dict[str, list[_Buffer]] = defaultdict(list)
    for buffer in buffers:
        by_arena[buffer.arena].append(buffer)
    arenas = {arena: _place(members) for arena, members in sorted(by_arena.items())}
    placed = {
        buffer.name: Allocation(arena=buffer.arena, offset=buffer.offset, size=buffer.size)
        for buffer in buffers
    }
    counted = _in_a_row(counters or {})
    if counted:
        arenas[COUNTERS_ARENA] = max(item.offset + _aligned(item.size) for item in counted.values())
    return MemoryPlan(
        arenas=arenas,
        values={n: item for n, item in placed.items() if not n.startswith(_SCRATCH_PREFIX)},
        scratch={
            n.removeprefix(_SCRATCH_PREFIX): item
            for n, item in placed.items()
            if n.startswith(_SCRATCH_PREFIX)
        },
        copies=copies,
        counters=counted,
    )


def _in_a_row(sizes: Mapping[str, int]) -> dict[str, Allocation]:
    """Allocations of the counters, each after the one before."""
    placed: dict[str, Allocation] = {}
    offset = 0
    for name, size in sizes.items():
        placed[name] = Allocation(arena=COUNTERS_ARENA, offset=offset, size=size)
        offset += _aligned(size)
    return placed


def _lifetimes(
    graph: Graph, scratch: Mapping[str, int], copies: frozenset[str]
) -> tuple[_Buffer, ...]:
    sequence = device_sequence(graph)
    end = len(sequence)
    buffers: dict[str, _Buffer] = {}
    owners: dict[str, str] = {}
    for item in graph.inputs:
        value, arena = item.value, item.rate.text
        buffers[value.name] = _Buffer(
            name=value.name, arena=arena, size=value.type.size_bytes, first=-1, last=end
        )
        owners[value.name] = value.name
    for time, position in enumerate(sequence):
        node, arena = position.node, position.stage.rate.text
        for name in _read(node, owners):
            buffer = buffers[name]
            buffer.last = max(buffer.last, time if buffer.arena == arena else end)
        for value in node.outputs:
            owner = _owner(node, value.name, owners, copies)
            owners[value.name] = owner
            if owner == value.name:
                buffers[owner] = _Buffer(
                    name=owner, arena=arena, size=value.type.size_bytes, first=time, last=time
                )
        if size := scratch.get(position.name, 0):
            name = _SCRATCH_PREFIX + position.name
            buffers[name] = _Buffer(name=name, arena=arena, size=size, first=time, last=time)
    for name in host_reads(graph):
        if not is_weight(owners[name]):
            buffers[owners[name]].last = end
    return tuple(buffers.values())


def _read(node: Node, owners: Mapping[str, str]) -> Iterator[str]:
    """The owners of what a node reads, weights left out."""
    for name in node.inputs:
        if not is_weight(name) and not is_weight(owners[name]):
            yield owners[name]


def _owner(node: Node, name: str, owners: Mapping[str, str], copies: frozenset[str]) -> str:
    if not row_of(node.op).view or name in copies:
        return name
    base = node.inputs[0]
    return base if is_weight(base) else owners[base]


def _place(buffers: list[_Buffer]) -> int:
    """Set the offsets of one arena's buffers; returns the arena's size in bytes."""
    placed: list[_Buffer] = []
    for buffer in sorted(buffers, key=lambda item: (-item.size, item.first, item.name)):
        alive = [
            other for other in placed if other.first <= buffer.last and buffer.first <= other.last
        ]
        buffer.offset = _tightest_gap(sorted(alive, key=lambda item: item.offset), buffer.size)
        placed.append(buffer)
    return max(buffer.end for buffer in placed)


def _tightest_gap(alive: list[_Buffer], size: int) -> int:
    """The offset of the smallest gap between `alive` that holds `size` bytes, or their end."""
    best: tuple[int, int] | None = None
    free = 0
    for other in alive:
        gap = other.offset - free
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, free)
        free = max(free, other.end)
    return free if best is None else best[1]


def _aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
