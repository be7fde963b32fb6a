"""Times the candidates of a problem, and chooses among them by a fixed rule."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policyc.compiler.ir.selection import Parameters
from policyc.runtime_min.driver_interface import Driver
from policyc.runtime_min.graph_timing import time_replays

FINALIST_MARGIN = 1.25
"""Candidates within this factor of the quickest first look are timed with care."""

TIE, LARGEST_TIE = 0.02, 0.05
"""Times within this share of the best are equal; a larger spread widens it, up to the second."""

_FIRST_REPLAYS, _ROUNDS, _ROUND_REPLAYS = 3, 5, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Median microseconds of one run; `spread` is the relative range of the medians of rounds."""

    parameters: Parameters
    microseconds: float
    spread: float


def time_candidates(
    driver: Driver, graphs: Mapping[Parameters, int], runs: int
) -> tuple[tuple[Timed, ...], Mapping[Parameters, float]]:
    """Finalists timed in rounds in which they take turns, and the first look at all, in us.

    Args:
        driver: current.
        graphs: a captured graph of `runs` runs for each candidate.
        runs: runs in a graph.
    """
    first: dict[Parameters, float] = {}
    for parameters, graph in graphs.items():
        time_replays(driver, (graph,), 1)
        (times,) = time_replays(driver, (graph,), _FIRST_REPLAYS)
        first[parameters] = statistics.median(times) / runs
    best = min(first.values())
    finalists = [item for item, us in first.items() if us <= best * FINALIST_MARGIN]
    medians: dict[Parameters, list[float]] = {item: [] for item in finalists}
    for _ in range(_ROUNDS):
        times_of = time_replays(driver, [graphs[item] for item in finalists], _ROUND_REPLAYS)
        for item, times in zip(finalists, times_of, strict=True):
            medians[item].append(statistics.median(times) / runs)
    return tuple(_timed(item, values) for item, values in medians.items()), first


def choose(timed: Sequence[Timed]) -> Timed:
    """The winner: of those that tie with the quickest, the one with the smallest parameters."""
    best = min(timed, key=lambda item: (item.microseconds, item.parameters))
    margin = 1 + max(TIE, min(best.spread, LARGEST_TIE))
    tied = [item for item in timed if item.microseconds <= best.microseconds * margin]
    return min(tied, key=lambda item: item.parameters)


def _timed(parameters: Parameters, medians: Sequence[float]) -> Timed:
    middle = statistics.median(medians)
    spread = (max(medians) - min(medians)) / middle if middle > 0 else 0.0
    return Timed(parameters=parameters, microseconds=middle, spread=spread)
