"""The official runs of the shrunken pi0.5 through compile, bundle and runtime: float32, CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policyc.compiler.ir.types import Array
from policyc.runtime_min.policy import Policy
from policyc.runtime_min.processing import Processing
from tests.compiled import CompiledBundles
from tests.oracles import Oracle, oracle

# Largest and relative L2 error that the official float32 code reaches against float64.
# Source: shared/oracles/README.md, "Yardstick", column pi05_fp32.
YARDSTICK: Mapping[str, tuple[float, float]] = {
    "image_emb": (6.2e-6, 9.5e-7),
    # Not in the table: rows times sqrt(width), two roundings to float32 of values below 4.
    "lang_emb": (2.4e-7, 6e-8),
    "k.0": (8.1e-6, 7.2e-7),
    "v.0": (5.2e-6, 6.7e-7),
    "k.1": (1.3e-5, 1.3e-6),
    "v.1": (1.0e-5, 1.2e-6),
    "k.2": (1.5e-5, 1.6e-6),
    "v.2": (1.1e-5, 1.6e-6),
    "suffix_emb": (1.2e-6, 1.1e-7),
    "v_t": (1.1e-5, 1.5e-6),
    "x_t": (5.5e-6, 5.9e-7),
    "actions": (5.5e-6, 8.1e-7),
    "actions_robot": (1.5e-5, 9.8e-7),
}
ALLOWED = 3
"""Times the yardstick, as the README suggests for float32."""
ACTIONS_LIMIT = 2e-5
"""Largest error of an action, as the README suggests."""
PROMPT_SLOTS = 64
OUTPUTS = tuple(name for name in YARDSTICK if name != "actions_robot")
CASES = {
    "pi05_fp32": ("plain", "masked", "steps5", "masked_mid"),
    "pi05_bf16": ("plain", "masked", "steps5"),
    "pi05_lerobot": ("plain", "masked", "steps5"),
}
RUNS = pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)


@pytest.fixture
def bundle(oracles: Path, compiled: CompiledBundles, name: str, case: str) -> Path:
    """The fixture's checkpoint, compiled with the steps of the case."""
    fixture = oracle(name)
    folder = oracles / name / fixture.layout
    steps = fixture.cases[case]["num_steps"]
    return compiled(folder, prompt_slots=PROMPT_SLOTS, steps=steps)


def observation(fixture: Oracle, case: str) -> dict[str, Any]:
    """What the robot hands in: cameras that do not count are left out."""
    is_openpi = fixture.layout == "openpi"
    mask = fixture.reference(case, "in/image_mask" if is_openpi else "in/camera_present")
    names = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    pictures = fixture.reference(case, "in/images_u8")
    return {
        "images": {names[index]: pictures[index] for index in np.flatnonzero(mask)},
        "state": fixture.reference(case, "in/state_raw"),
        "prompt": fixture.cases[case]["prompt"],
    }


def recorded(fixture: Oracle, case: str, output: str) -> Array | None:
    """The tightest recording: float64 of the same file, else the official float32 run of it.

    The official run of the bfloat16 file is a bfloat16 run, which is no measure for float32.
    """
    folders = ["ref64", "out_float32"]
    if fixture.name != "pi05_bf16":
        folders.append("out")
    fields = (f"{case}/{folder}/{output}" for folder in folders)
    return next((fixture.arrays[field] for field in fields if field in fixture.arrays), None)


def assert_within(name: str, got: Array, expected: Array) -> None:
    """Compare with `ALLOWED` times the yardstick of `name`."""
    assert got.shape == expected.shape and np.isfinite(got).all(), name
    largest, relative = (ALLOWED * limit for limit in YARDSTICK[name])
    difference = got.astype(np.float64) - expected.astype(np.float64)
    worst = float(np.abs(difference).max())
    ratio = float(np.linalg.norm(difference) / np.linalg.norm(expected.astype(np.float64)))
    assert worst <= largest, f"{name}: error {worst:.2e}, limit {largest:.2e}"
    assert ratio <= relative, f"{name}: relative error {ratio:.2e}, limit {relative:.2e}"


@RUNS
def test_every_recorded_value(bundle: Path, name: str, case: str) -> None:
    """Embeddings, prefix keys and values, every step's velocity and state, and the actions.

    Case 20: openpi's masked cameras hold a real picture here, which does not act. Case 28: the
    comparison target is named, float64 of the same file.
    """
    fixture = oracle(name)
    with Policy.load(bundle, "cpu") as policy:
        results = policy.run(fixture.inputs(case), OUTPUTS)
    compared = []
    for output in OUTPUTS:
        expected = recorded(fixture, case, output)
        if expected is None:
            continue
        got = results[output][0]
        if output.startswith(("k.", "v.")):
            valid = fixture.prefix_mask(case)
            assert not got[:, ~valid].any(), f"{output}: padding rows are zero"
            got, expected = got[:, valid], expected[:, valid]
        assert_within(output, got, expected)
        compared.append(output)
    assert {"actions", "v_t"} <= set(compared)
    assert name != "pi05_fp32" or case != "plain" or tuple(compared) == OUTPUTS
    expected = recorded(fixture, case, "actions")
    assert expected is not None
    assert np.abs(results["actions"][0] - expected).max() <= ACTIONS_LIMIT


@RUNS
def test_from_pictures_to_robot_units(bundle: Path, name: str, case: str) -> None:
    """Case 73, case 24: the tokens are equal, and so are the actions in robot units."""
    fixture = oracle(name)
    given = observation(fixture, case)
    tensors = Processing.load(bundle).prepare(given)
    for key in ("tokens", "token_mask"):
        np.testing.assert_array_equal(tensors[key][0], fixture.reference(case, f"in/{key}"))
    with Policy.load(bundle, "cpu") as policy:
        robot = policy.infer(given, noise=fixture.reference(case, "in/noise"))
    expected = recorded(fixture, case, "actions_robot")
    assert expected is not None
    assert robot.shape == (10, 7) and robot.dtype == np.float64
    assert_within("actions_robot", robot, expected)
