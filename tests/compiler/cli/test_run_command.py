from __future__ import annotations

from pathlib import Path

import numpy as np

from policyc.compiler.cli.archives import read_arrays
from policyc.compiler.exit_codes import ExitCode
from policyc.runtime_min.policy import Policy
from tests.compiler.cli.conftest import Invoke
from tests.runtime_min.bundles import observation


def test_run_writes_the_actions_of_the_observation(
    invoke: Invoke, robot_bundle: Path, observation_file: Path, tmp_path: Path
) -> None:
    output = tmp_path / "actions.npz"
    outcome = invoke(
        "run", robot_bundle, "--observation", observation_file, "-o", output, "--device", "cpu"
    )
    assert outcome.code == ExitCode.OK, outcome.err
    written = read_arrays(output)
    with Policy.load(robot_bundle, "cpu") as policy:
        expected = policy.infer(observation(), noise=np.ones((3, 4), np.float32))
    assert np.array_equal(written["actions"], expected) and list(written["names"]) == ["x", "y"]


def test_noise_and_seed_exclude_each_other(
    invoke: Invoke, robot_bundle: Path, observation_file: Path, tmp_path: Path
) -> None:
    output = tmp_path / "actions.npz"
    outcome = invoke(
        "run", robot_bundle, "--observation", observation_file, "-o", output, "--seed", 1
    )
    assert outcome.code == ExitCode.USAGE and "--seed" in outcome.err and not output.exists()


def test_a_wrong_observation_is_code_7_and_writes_nothing(
    invoke: Invoke, robot_bundle: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "o.npz", prompt=np.array("go"), **{"images.top": np.zeros((4, 4, 3), "u1")})
    output = tmp_path / "actions.npz"
    outcome = invoke(
        *("run", robot_bundle, "--observation", tmp_path / "o.npz", "-o", output),
        *("--device", "cpu"),
    )
    assert outcome.code == ExitCode.INPUT and "front" in outcome.err and "top" in outcome.err
    assert not output.exists()
