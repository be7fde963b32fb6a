from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from policyc.backends.kernel_cache import CompiledKernel
from policyc.backends.source import KernelSource
from policyc.compiler.events import Event
from policyc.compiler.options import OptionError
from policyc.compiler.tune import choices_of, remarks_of, tune_bundle
from policyc.profiles.choices import file_text
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.driver_interface import KernelLaunch
from policyc.runtime_min.errors import DeviceError
from policyc.runtime_min.null_driver import NullDriver, null_facts
from tests.compiler.tuning.cases import (
    DATE,
    bundle,
    normalise,
    null_driver,
    pretend,
    problem,
    tuner,
)


@pytest.fixture
def opened(tmp_path: Path) -> Bundle:
    return bundle(tmp_path / "a.policy")


def test_all_candidates_are_checked_timed_and_the_first_of_equals_wins(opened: Bundle) -> None:
    told: list[Event] = []
    drivers: list[NullDriver] = []

    def open_driver() -> NullDriver:
        drivers.append(null_driver())
        return drivers[-1]

    report = tune_bundle(opened, tuner(open_driver, told))
    (tuned,) = report.problems
    every = sorted(candidate.parameters for candidate in problem().candidates)
    assert len(every) > 3 and sorted(tuned.first_look_us) == every and not tuned.failures
    assert tuned.winner is not None and tuned.winner.parameters == every[0]
    assert (tuned.winner.microseconds, tuned.winner.spread, tuned.uses) == (2000.0, 0.0, 2)
    assert (report.driver, report.clocks, report.date) == ("580.1", "sm 1980 MHz", DATE)
    assert len(drivers) == 1 and drivers[0].is_empty
    assert [event.kind for event in told] == ["kernels", "measure"]
    (choice,) = choices_of(report)
    assert (choice.how, choice.microseconds, choice.driver) == ("measured", 2000.0, "580.1")
    text = file_text("h200", (choice,), remarks_of(report))
    assert "# 2 uses," in text and "# next: " in text
    assert tomllib.loads(text)["choice"][0]["date"] == DATE


def test_a_wrong_candidate_never_wins(opened: Bundle) -> None:
    fewest = min(problem().candidates, key=lambda item: item.parameters)
    threads = 32 * dict(fewest.parameters)["num_warps"]

    def kernel(driver: NullDriver, launch: KernelLaunch) -> None:
        normalise(driver, launch)
        if launch.block_threads == threads:
            address = launch.pointers[2]
            driver.memory(address, 4)[:] = 0x40

    (tuned,) = tune_bundle(opened, tuner(lambda: null_driver(kernel), [])).problems
    wrong = [
        item for item in problem().candidates if dict(item.parameters)["num_warps"] * 32 == threads
    ]
    assert tuned.failures.keys() == {item.parameters for item in wrong}
    assert "largest error" in tuned.failures[fewest.parameters]
    assert tuned.winner is not None and tuned.winner.parameters not in tuned.failures


def test_results_that_were_not_written_are_found(opened: Bundle) -> None:
    report = tune_bundle(opened, tuner(lambda: null_driver(lambda *_: None), []))
    (tuned,) = report.problems
    assert tuned.winner is None and choices_of(report) == () and remarks_of(report) == {}
    assert all("not finite or were not written" in text for text in tuned.failures.values())


def test_a_candidate_that_breaks_the_device_is_left_out(opened: Bundle) -> None:
    most = max(problem().candidates, key=lambda item: item.parameters)
    threads = 32 * dict(most.parameters)["num_warps"]
    drivers: list[NullDriver] = []

    def kernel(driver: NullDriver, launch: KernelLaunch) -> None:
        if launch.block_threads == threads:
            raise DeviceError("cuGraphLaunch failed: CUDA_ERROR_ILLEGAL_ADDRESS.")
        normalise(driver, launch)

    def open_driver() -> NullDriver:
        drivers.append(null_driver(kernel))
        return drivers[-1]

    (tuned,) = tune_bundle(opened, tuner(open_driver, [])).problems
    assert tuned.winner is not None
    assert "ILLEGAL_ADDRESS" in tuned.failures[most.parameters]
    assert len(drivers) == 1 + len(tuned.failures) and drivers[-1].is_empty


def test_measuring_stops_when_the_device_is_lost(opened: Bundle) -> None:
    def kernel(driver: NullDriver, launch: KernelLaunch) -> None:
        raise DeviceError("cuGraphLaunch failed.")

    opened_once: list[NullDriver] = []

    def open_driver() -> NullDriver:
        if opened_once:
            raise DeviceError("no device any more.")
        opened_once.append(null_driver(kernel))
        return opened_once[0]

    report = tune_bundle(opened, tuner(open_driver, []))
    assert "does not open again: no device any more" in report.stopped
    assert report.problems[0].winner is None and len(report.problems[0].failures) == 1


def test_what_does_not_compile_keeps_its_reason(opened: Bundle) -> None:
    def compile(sources: Mapping[str, KernelSource]) -> Mapping[str, CompiledKernel | str]:
        compiled = dict(pretend(sources))
        compiled[next(iter(compiled))] = "kernel x did not compile"
        return compiled

    (tuned,) = tune_bundle(opened, tuner(null_driver, [], compile)).problems
    assert list(tuned.failures.values()) == ["kernel x did not compile"]
    assert tuned.winner is not None


def test_a_budget_leaves_problems_out(opened: Bundle) -> None:
    report = tune_bundle(opened, tuner(null_driver, [], seconds=-1.0))
    assert report.problems == () and report.left == (problem().key,)
    assert "seconds of measuring were over" in report.stopped


def test_mistakes_are_named_before_anything_is_compiled(opened: Bundle) -> None:
    with pytest.raises(OptionError, match="no problem of .* contains 'attention'"):
        tune_bundle(opened, tuner(null_driver, []), "attention")
    other = null_driver(capability=120)
    with pytest.raises(OptionError, match="capability 90, null device has 120"):
        tune_bundle(opened, tuner(lambda: other, []))
    assert other.calls[-1].name == "close"


def test_operands_that_do_not_fit_leave_the_problem_out(opened: Bundle) -> None:
    drivers: list[NullDriver] = []

    def open_driver() -> NullDriver:
        drivers.append(NullDriver(null_facts(90, 13000), free_bytes=4096))
        return drivers[-1]

    report = tune_bundle(opened, tuner(open_driver, []))
    (tuned,) = report.problems
    assert tuned.winner is None and "can't allocate" in tuned.fault and not tuned.failures
    assert len(drivers) == 2 and drivers[-1].calls[-1].name == "close"
