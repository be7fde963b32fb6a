from __future__ import annotations

import json
from pathlib import Path

from policyc.compiler.describe import describe_bundle, describe_targets, to_json
from policyc.runtime_min.bundle import Bundle
from tests.runtime_min.bundles import write_bundle


def test_a_bundle_without_processing(tmp_path: Path) -> None:
    description = describe_bundle(Bundle.open(write_bundle(tmp_path / "a.policy")))
    assert description.robot is None and description.policy == "toy"
    assert sum(description.sizes.values()) == sum(
        path.stat().st_size
        for path in (tmp_path / "a.policy").rglob("*")
        if path.is_file() and path.name != "manifest.json"
    )


def test_launches_are_counted_by_stage_and_kernel(tmp_path: Path) -> None:
    description = describe_bundle(Bundle.open(write_bundle(tmp_path / "a.policy")))
    plan = description.plans[0]
    assert (plan.compute_capability, plan.batch, plan.launches) == ("9.0", 1, 3)
    counts = [(count.stage, count.kernel, count.launches) for count in plan.kernels]
    assert counts == [("prompt", "embed", 1), ("denoise", "linear", 1), ("denoise", "add", 1)]


def test_the_robot_interface_and_json(tmp_path: Path, oracles: Path) -> None:
    tokenizer = oracles / "tokenizer" / "tokenizer.model"
    description = describe_bundle(Bundle.open(write_bundle(tmp_path / "a.policy", tokenizer)))
    assert description.robot is not None
    assert description.robot.action_names == ("x", "y") and description.robot.horizon == 3
    assert json.loads(json.dumps(to_json(description)))["robot"]["image_size"] == [4, 4]


def test_targets_begin_with_the_cpu() -> None:
    cpu, *profiles = describe_targets()
    assert cpu.name == "cpu" and cpu.compute_capability is None and profiles
