"""Where every value of a scheduled graph lies: made by the planner, read by lowering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ALIGNMENT_BYTES = 256
"""Every allocation starts at a multiple of this (the alignment that cuMemAlloc gives)."""


COUNTERS_ARENA = "counters"
"""The arena of what launches count; the other arenas are named by rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A range of an arena; `size` is the tensor's own size in bytes, not rounded up."""

    arena: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Arenas (name -> bytes), and an allocation for every value that owns memory.

    Values that are views own none. `scratch` holds the workspace of nodes, by the name of the
    node's first result. `copies` are the results of view ops that strides cannot express; they own
    memory and are written by a copy. `counters` holds what the launches of a node count from one
    run to the next, by the same name: alone in an arena of its own, zero at load, never reused.
    """

    arenas: Mapping[str, int]
    values: Mapping[str, Allocation]
    scratch: Mapping[str, Allocation]
    copies: frozenset[str] = frozenset()
    counters: Mapping[str, Allocation] = field(default_factory=dict)
