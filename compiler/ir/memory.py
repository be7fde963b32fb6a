"""Where every value of a scheduled graph lies: made by the planner, read by lowering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALIGNMENT_BYTES = 256
"""Every allocation starts at a multiple of this (the alignment that cuMemAlloc gives)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A range of an arena; `size` is the tensor's own size in bytes, not rounded up."""

    arena: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Arenas (rate -> bytes), and an allocation for every value that owns memory.

    Values that are views own none. `scratch` holds the workspace of nodes, by the name of the
    node's first result. `copies` are the results of view ops that strides cannot express; they own
    memory and are written by a copy.
    """

    arenas: Mapping[str, int]
    values: Mapping[str, Allocation]
    scratch: Mapping[str, Allocation]
    copies: frozenset[str] = frozenset()
