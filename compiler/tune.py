"""`policyc tune`: measures the kernel candidates of a bundle on the GPU at hand.

All candidates are compiled first, in worker processes; then each is checked against the op table's
reference and timed in a captured graph. No torch is needed to measure.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policyc.backends.kernel_cache import CompiledKernel
from policyc.compiler.events import Event, Report
from policyc.compiler.ir.selection import Parameters
from policyc.compiler.options import OptionError
from policyc.compiler.tuning.candidates import (
    Compile,
    LoweredCandidate,
    layout_of,
    lower_candidates,
    make_ready,
    sources_of,
)
from policyc.compiler.tuning.problems import TuningProblem, tuning_problems
from policyc.compiler.tuning.timing import Timed, choose
from policyc.compiler.tuning.trial import CandidateBroke, Outcome, measure, prepare
from policyc.passes.select_kernels import parameters_text
from policyc.profiles.profile import Choice, Profile
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.driver_interface import Driver
from policyc.runtime_min.errors import DeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The outcome of one problem.

    `timed` are the finalists, quickest first, `first_look_us` what all that are right took in a
    short look, `failures` the reason of each candidate that did not compile, run or agree. `winner`
    is None if none is left, or if `fault` kept the problem from being measured.
    """

    problem: str
    uses: int
    winner: Timed | None
    timed: tuple[Timed, ...] = ()
    first_look_us: Mapping[Parameters, float] = field(default_factory=dict)
    failures: Mapping[Parameters, str] = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneReport:
    """What was measured, when and where; `left` are problems that were not reached, and why."""

    target: str
    date: datetime.date
    driver: str
    clocks: str
    problems: tuple[Tuned, ...]
    left: tuple[str, ...]
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuner:
    """What tuning works with.

    Args:
        profile: of the device at hand.
        open_driver: opens the device; called again after a candidate broke it.
        compile: machine code of sources, or why there is none.
        facts: driver version and clocks, asked for while the device is busy.
        report: told about progress.
        seconds: stop starting problems after this much measuring.
        today: the date to write down.
    """

    profile: Profile
    open_driver: Callable[[], Driver]
    compile: Compile
    facts: Callable[[], tuple[str, str]]
    report: Report
    seconds: float
    today: datetime.date


def tune_bundle(bundle: Bundle, tuner: Tuner, only: str = "") -> TuneReport:
    """Measure every problem of a bundle whose key contains `only`, the most expensive first.

    Raises:
        OptionError: no problem has the text; the device is not the profile's.
        DeviceError: the device cannot be opened at all.
    """
    graphs = [bundle.graph(batch) for batch in bundle.manifest.batch_buckets]
    problems = tuning_problems(graphs, tuner.profile, only)
    if not problems:
        raise OptionError(f"no problem of {bundle.folder} contains {only!r}.")
    driver = tuner.open_driver()
    try:
        _check_device(driver, tuner.profile)
    except OptionError:
        driver.close()
        raise
    lowered = {problem.key: lower_candidates(problem, tuner.profile) for problem in problems}
    return _Run(tuner=tuner, driver=driver).all(problems, lowered, _compiled(tuner, lowered))


def _check_device(driver: Driver, profile: Profile) -> None:
    capability = driver.facts.compute_capability
    if capability != profile.compute_capability:
        raise OptionError(
            f"target {profile.target} has compute capability {profile.compute_capability}, "
            f"{driver.facts.name} has {capability}. Tune on the target's own GPU."
        )


def _compiled(
    tuner: Tuner, lowered: Mapping[str, Sequence[LoweredCandidate]]
) -> Mapping[str, CompiledKernel | str]:
    started = time.perf_counter()
    sources = sources_of([item for candidates in lowered.values() for item in candidates])
    compiled = tuner.compile(sources)
    failed = sum(isinstance(item, str) for item in compiled.values())
    text = f"{len(sources)} kernels of {len(lowered)} problems, {failed} failed"
    tuner.report(Event(kind="kernels", text=text, seconds=time.perf_counter() - started))
    return compiled


@dataclass(slots=True, kw_only=True)
class _Run:
    """Measuring, problem by problem; the driver is replaced after a candidate broke the device."""

    tuner: Tuner
    driver: Driver | None
    where: tuple[str, str] | None = None
    stopped: str = ""

    def all(
        self,
        problems: Sequence[TuningProblem],
        lowered: Mapping[str, Sequence[LoweredCandidate]],
        compiled: Mapping[str, CompiledKernel | str],
    ) -> TuneReport:
        started = time.perf_counter()
        done: list[Tuned] = []
        for number, problem in enumerate(problems, start=1):
            spent = time.perf_counter() - started
            if spent > self.tuner.seconds and not self.stopped:
                self.stopped = f"{self.tuner.seconds:g} seconds of measuring were over"
            if self.stopped:
                break
            done.append(self._problem(problem, lowered[problem.key], compiled))
            self._tell(done[-1], f"{number}/{len(problems)}", time.perf_counter() - started - spent)
        if self.driver is not None:
            self.driver.close()
        driver, clocks = self.where or self.tuner.facts()
        return TuneReport(
            target=self.tuner.profile.target,
            date=self.tuner.today,
            driver=driver,
            clocks=clocks,
            problems=tuple(done),
            left=tuple(problem.key for problem in problems[len(done) :]),
            stopped=self.stopped,
        )

    def _problem(
        self,
        problem: TuningProblem,
        lowered: Sequence[LoweredCandidate],
        compiled: Mapping[str, CompiledKernel | str],
    ) -> Tuned:
        layout = layout_of(problem)
        profile = self.tuner.profile
        ready = [make_ready(item, layout, compiled, profile) for item in lowered]
        failures = {item.parameters: item.failure for item in ready if item.failure}
        prepared = prepare(problem, layout, profile)
        while self.driver is not None:
            usable = [item for item in ready if item.parameters not in failures]
            # Clocks are asked for once: nvidia-smi takes its time.
            facts = None if self.where else self.tuner.facts
            try:
                outcome = measure(self.driver, prepared, usable, facts)
            except CandidateBroke as error:
                failures[error.parameters] = f"did not run: {error}"
                self._replace_driver()
            except DeviceError as error:
                self._replace_driver()
                return _unmeasured(problem, failures, str(error))
            else:
                self.where = self.where or outcome.facts
                return _tuned(problem, outcome, failures)
        return _unmeasured(problem, failures, self.stopped)

    def _replace_driver(self) -> None:
        """Close a device that may answer nothing any more, and open it anew; or stop."""
        assert self.driver is not None, "measuring stops when the device is lost"
        try:
            self.driver.close()
        except DeviceError as error:
            self.tuner.report(Event(kind="note", text=f"closing the device: {error}"))
        self.driver = None
        try:
            self.driver = self.tuner.open_driver()
        except DeviceError as error:
            self.stopped = f"the device does not open again: {error}"

    def _tell(self, tuned: Tuned, place: str, seconds: float) -> None:
        if tuned.winner is None:
            outcome = tuned.fault or f"no candidate is left of {len(tuned.failures)}"
        else:
            chosen = parameters_text(tuned.winner.parameters)
            outcome = f"{tuned.winner.microseconds:.2f} us, {chosen}"
        failed = f"; {len(tuned.failures)} candidates failed" if tuned.failures else ""
        text = f"{place} {tuned.problem}: {outcome}{failed}"
        self.tuner.report(Event(kind="measure", text=text, seconds=seconds))


def _tuned(problem: TuningProblem, outcome: Outcome, failures: Mapping[Parameters, str]) -> Tuned:
    return Tuned(
        problem=problem.key,
        uses=problem.uses,
        winner=choose(outcome.timed) if outcome.timed else None,
        timed=outcome.timed,
        first_look_us=outcome.first_look_us,
        failures={**failures, **outcome.wrong},
    )


def _unmeasured(problem: TuningProblem, failures: Mapping[Parameters, str], fault: str) -> Tuned:
    return Tuned(
        problem=problem.key, uses=problem.uses, winner=None, failures=failures, fault=fault
    )


def choices_of(report: TuneReport) -> tuple[Choice, ...]:
    """The winners as entries of a profile's table."""
    return tuple(
        Choice(
            problem=item.problem,
            parameters=item.winner.parameters,
            how="measured",
            microseconds=round(item.winner.microseconds, 3),
            spread=round(item.winner.spread, 4),
            date=report.date,
            driver=report.driver,
            clocks=report.clocks,
        )
        for item in report.problems
        if item.winner is not None
    )


def remarks_of(report: TuneReport) -> dict[str, str]:
    """What a reader of a choice may want to know: the next best, and what failed."""
    return {item.problem: _remark(item) for item in report.problems if item.winner is not None}


def _remark(item: Tuned) -> str:
    assert item.winner is not None, "remarks are made on winners"
    others = [timed for timed in item.timed if timed.parameters != item.winner.parameters]
    count = len(item.first_look_us) + len(item.failures)
    lines = [f"{item.uses} uses, {count} candidates, {len(item.failures)} failed"]
    if others:
        text = parameters_text(others[0].parameters)
        lines.append(f"next: {text}, {others[0].microseconds:.3f} us")
    return "\n".join(lines)
