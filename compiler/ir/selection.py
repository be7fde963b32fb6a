"""The words of kernel selection: problems, candidates and their parameters, as data.

Families (in `kernels`) produce them, the selection pass chooses among them; neither imports the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Parameters = tuple[tuple[str, int], ...]
"""Sorted (name, value) pairs, such as (("block_k", 64), ("block_m", 128), ("num_warps", 8))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What decides a kernel choice: equal problems get equal parameters.

    `key` is the line of the profile's table, such as `linear m=968 n=2560 k=2048 bf16`.
    """

    op: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Parameters that a family offers; `rejected` says why the device cannot run them, or is empty.

    `cost` orders candidates where nothing was measured: smaller is preferred, ties by `parameters`.
    """

    parameters: Parameters
    cost: float
    rejected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a family offers for one node: its problem, and the candidates in the family's order."""

    problem: Problem
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that did not win, and why."""

    parameters: Parameters
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The winner for a problem, with its reason and every other candidate with its own.

    `microseconds` is a measurement on the target itself, or None. `uses` counts the nodes.
    """

    problem: Problem
    parameters: Parameters
    reason: str
    microseconds: float | None
    uses: int
    rejected: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A decision for every problem of a graph, by problem key in order of first use.

    `nodes` maps each node that launches (by the name of its first result) to its problem key.
    """

    decisions: Mapping[str, Decision]
    nodes: Mapping[str, str]

    def parameters_of(self, node_name: str) -> Parameters:
        return self.decisions[self.nodes[node_name]].parameters
