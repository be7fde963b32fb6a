"""The words of kernel selection: problems, candidates and their parameters, as data.

Families (in `kernels`) produce them, the selection pass chooses among them; neither imports the
other.
"""

from __future__ import annotations

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
