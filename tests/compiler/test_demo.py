from __future__ import annotations

from pathlib import Path

import numpy as np

from policyc.compiler.cli.archives import read_arrays
from policyc.compiler.demo import RUNS, distance_table, observation_of, options_of


def test_the_yardsticks_are_those_of_the_recorded_actions(small_policy: Path) -> None:
    demos = read_arrays(small_policy / "demos.npz")
    for run in RUNS:
        error = np.abs(demos[run.official].astype(float) - demos["robot_ref64"]).max()
        assert abs(error - run.yardstick) < 0.05 * run.yardstick


def test_an_observation_has_the_keys_of_the_policy(small_policy: Path) -> None:
    observation = observation_of(read_arrays(small_policy / "demos.npz"), 0)
    assert set(observation) == {"images", "state", "prompt"}
    assert isinstance(observation["prompt"], str)


def test_options_name_the_committed_checkpoint(small_policy: Path) -> None:
    for run in RUNS:
        assert options_of(run).checkpoint == small_policy / "openpi"


def test_distances_stand_beside_the_official_ones(small_policy: Path) -> None:
    demos = read_arrays(small_policy / "demos.npz")
    table = distance_table(RUNS[0], demos, [demos["robot_ref64"][0] + 0.5])
    assert list(table.columns[1].cells) == ["5.00e-01"]
