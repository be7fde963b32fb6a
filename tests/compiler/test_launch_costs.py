from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from policyc.compiler.launch_costs import (
    by_kernel,
    by_stage,
    launch_costs,
    launch_report,
    measure_groups,
)
from policyc.profiles.loader import load_profile
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.device_executor import DeviceExecutor
from policyc.runtime_min.graph_timing import ReplayCosts
from policyc.runtime_min.null_driver import NullDriver, null_facts
from policyc.runtime_min.signature import Signature
from tests.runtime_min.bundles import BUCKETS, bucket, graph, write_bundle

PROFILE = load_profile("h200")


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[DeviceExecutor]:
    """The small bundle on a null device whose launches take 4 us each."""
    bundle = Bundle.open(write_bundle(tmp_path / "a.policy"))
    driver = NullDriver(null_facts(90, 12080), launch_us=4.0)
    executor = DeviceExecutor.load(bundle, driver, Signature.of(graph(1), BUCKETS))
    yield executor
    executor.close()


def test_a_node_counts_at_its_first_launch() -> None:
    launches = bucket(1).launches
    twice = (*launches, replace(launches[1], kernel="again"))
    costs = launch_costs(graph(1), twice)
    assert [launch for launch, _ in costs] == list(twice)
    assert [cost.flops for _, cost in costs][1:] == [2 * 3 * 4 * 4, 12, 0]
    assert costs[-1][1].bytes == 0


def test_groups_are_counted_and_measured(executor: DeviceExecutor, tmp_path: Path) -> None:
    bundle = Bundle.open(tmp_path / "a.policy")
    launches = bucket(1).launches
    for key, expected in (
        (by_kernel, {"linear": 4.0, "add": 4.0, "embed": 4.0}),
        (by_stage, {"denoise": 8.0, "prompt": 4.0}),
    ):
        measured = measure_groups(executor, 1, launches, key, 3)
        report = launch_report(bundle, PROFILE, 1, key, measured)
        assert {group.name: group.microseconds for group in report.groups} == expected
        assert report.total_us == 12.0 and report.groups[0].stage == "denoise"
    (group,) = (item for item in report.groups if item.name == "denoise")
    assert (group.launches, group.flops, group.us_per_launch) == (2, 96 + 12, 4.0)
    assert group.roof_share == pytest.approx(group.roof_us / 8.0)


def test_groups_that_were_kept_have_no_time(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.policy"))
    measured = ReplayCosts(total_us=5.0, groups_us={"denoise/add": -0.5})
    report = launch_report(bundle, PROFILE, 1, by_kernel, measured)
    times = {group.name: (group.microseconds, group.roof_share) for group in report.groups}
    assert times["linear"] == (None, None) and times["add"] == (-0.5, None)
