"""What a profile holds: the facts of a device, each with its source, and the table of choices."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

How = Literal["measured", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The kernel parameters that won for a problem.

    `how` is `measured` (on the device of this profile: `microseconds`, `spread`, `date`, `driver`
    and `clocks` are given; `spread` is the relative range of the repeated medians) or `model` (a
    prediction, or a choice taken over from `measured_on`, which says nothing about the time here:
    `microseconds` may be None).
    """

    problem: str
    parameters: tuple[tuple[str, int], ...]
    how: How
    microseconds: float | None = None
    spread: float | None = None
    date: datetime.date | None = None
    driver: str = ""
    clocks: str = ""
    measured_on: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A device to compile for.

    Satisfies `kernels.spec.Device`. `peak_flops` are dense operations per second by element type;
    `sources` maps each fact to where it was taken from; `choices` are by problem.
    """

    target: str
    name: str
    compute_capability: int
    sm_count: int
    shared_bytes_per_block: int
    registers_per_block: int
    l2_bytes: int
    memory_bytes: int
    bandwidth_bytes_per_s: float
    unified_memory: bool
    has_dependent_launch: bool
    has_tensor_maps: bool
    has_fp8: bool
    has_warp_group_mma: bool
    peak_flops: Mapping[str, float]
    sources: Mapping[str, str]
    choices: Mapping[str, Choice]
