"""Checks and times the candidates of one problem on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from policyc.compiler.ir.selection import Parameters
from policyc.compiler.tuning.bench import ProblemBench, copies_of
from policyc.compiler.tuning.candidates import Layout, ReadyCandidate
from policyc.compiler.tuning.check import Expected, expected_results
from policyc.compiler.tuning.operands import HostOperands, make_operands
from policyc.compiler.tuning.problems import TuningProblem
from policyc.compiler.tuning.timing import Timed, time_candidates
from policyc.profiles.profile import Profile
from policyc.runtime_min.driver_interface import Driver
from policyc.runtime_min.errors import DeviceError

_SEED = 7
_LOAD_US = 400_000.0
_MOST_REPLAYS = 20_000


class CandidateBroke(Exception):
    """A driver call failed while a candidate ran: the device may answer nothing any more."""

    def __init__(self, parameters: Parameters, reason: str) -> None:
        super().__init__(reason)
        self.parameters = parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedProblem:
    """A problem with its operands and the right results."""

    problem: TuningProblem
    layout: Layout
    operands: HostOperands
    expected: Expected
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Finalists, the first look at all that are right, why others are wrong, facts under load."""

    timed: tuple[Timed, ...]
    first_look_us: Mapping[Parameters, float]
    wrong: Mapping[Parameters, str]
    facts: tuple[str, str] | None


Facts = Callable[[], tuple[str, str]]
"""Driver version and clocks."""


def prepare(problem: TuningProblem, layout: Layout, profile: Profile) -> PreparedProblem:
    """Make operands and reference on the host."""
    operands = make_operands(problem.work, _SEED)
    return PreparedProblem(
        problem=problem,
        layout=layout,
        operands=operands,
        expected=expected_results(problem.work, operands, _SEED),
        copies=copies_of(layout, profile.l2_bytes),
    )


def measure(
    driver: Driver,
    prepared: PreparedProblem,
    candidates: Sequence[ReadyCandidate],
    facts: Facts | None,
) -> Outcome:
    """Check all candidates, then time those that are right.

    Args:
        driver: an open device.
        prepared: operands and reference.
        candidates: those that compiled.
        facts: called while the device is busy with the quickest candidate; None asks nothing.

    Raises:
        CandidateBroke: a driver call failed for a candidate; the device must be opened anew.
        DeviceError: the operands do not fit the device's memory.
    """
    bench = ProblemBench(
        driver=driver,
        work=prepared.problem.work,
        layout=prepared.layout,
        copies=prepared.copies,
    )
    with driver.current():
        try:
            bench.upload(prepared.operands)
            return _measure(bench, prepared.expected, candidates, facts)
        except CandidateBroke:
            bench.abandon()
            raise
        finally:
            bench.close()


def _measure(
    bench: ProblemBench,
    expected: Expected,
    candidates: Sequence[ReadyCandidate],
    facts: Facts | None,
) -> Outcome:
    wrong: dict[Parameters, str] = {}
    graphs: dict[Parameters, int] = {}
    for candidate in candidates:
        try:
            fault = bench.check(candidate, expected)
            if fault:
                wrong[candidate.parameters] = f"wrong: {fault}"
            else:
                graphs[candidate.parameters] = bench.capture(candidate)
        except DeviceError as error:
            raise CandidateBroke(candidate.parameters, str(error)) from error
    if not graphs:
        return Outcome(timed=(), first_look_us={}, wrong=wrong, facts=None)
    timed, first = time_candidates(bench.driver, graphs, bench.runs)
    ordered = tuple(sorted(timed, key=lambda item: (item.microseconds, item.parameters)))
    busy = graphs[ordered[0].parameters], ordered[0].microseconds * bench.runs
    return Outcome(
        timed=ordered,
        first_look_us=first,
        wrong=wrong,
        facts=None if facts is None else _facts_under_load(bench.driver, *busy, facts),
    )


def _facts_under_load(driver: Driver, graph: int, graph_us: float, facts: Facts) -> tuple[str, str]:
    """Clocks differ between an idle device and a busy one: ask while replays are queued."""
    count = min(int(_LOAD_US / max(graph_us, 1.0)) + 1, _MOST_REPLAYS)
    for _ in range(count):
        driver.launch_graph(graph)
    found = facts()
    driver.synchronize()
    return found
