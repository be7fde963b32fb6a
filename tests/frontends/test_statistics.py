"""Normalisation statistics: found, chosen, refused."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.errors import StatisticsError
from policyc.frontends.statistics import FeatureStatistics, Statistics, read_statistics

VALID: dict[str, Any] = {
    name: {
        "mean": [0.5] * width,
        "std": [1.0] * width,
        "q01": [-1.0] * width,
        "q99": [2.0] * width,
    }
    for name, width in (("state", 3), ("actions", 2))
}


@pytest.fixture
def openpi(tmp_path: Path) -> Path:
    folder = tmp_path / "openpi"
    folder.mkdir()
    (folder / "config.json").write_text('{"action_horizon": 1}')
    safetensors.numpy.save_file({"x": np.ones(1, np.float32)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def lerobot(oracles: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(oracles / "pi05_lerobot" / "lerobot", tmp_path / "lerobot"))


def add(folder: Path, identifier: str, content: object) -> None:
    place = folder / "assets" / identifier
    place.mkdir(parents=True, exist_ok=True)
    (place / "norm_stats.json").write_text(json.dumps({"norm_stats": content}))


def read(folder: Path, identifier: str | None = None) -> Statistics:
    return read_statistics(Checkpoint.open(folder), identifier)


def refused(folder: Path, match: str, identifier: str | None = None) -> None:
    with pytest.raises(StatisticsError, match=match) as caught:
        read(folder, identifier)
    assert str(folder) in str(caught.value)


def feature(statistics: Statistics, name: str) -> FeatureStatistics:
    found = getattr(statistics, name)
    assert isinstance(found, FeatureStatistics)
    return found


def test_official_openpi_statistics(oracles: Path) -> None:
    folder = oracles / "pi05_fp32" / "openpi"
    path = folder / "assets" / "tiny_arm" / "norm_stats.json"
    expected = json.loads(path.read_text())["norm_stats"]
    statistics = read(folder)
    assert statistics.id == "tiny_arm" and statistics.notes == ()
    assert list(statistics.file_digests) == ["assets/tiny_arm/norm_stats.json"]
    for name, width in (("state", 8), ("actions", 7)):
        found = feature(statistics, name)
        assert found.width == width and found.min is None and found.max is None
        for vector in ("mean", "std", "q01", "q99"):
            np.testing.assert_array_equal(getattr(found, vector), expected[name][vector])


def test_official_lerobot_statistics(oracles: Path) -> None:
    folder = oracles / "pi05_lerobot" / "lerobot"
    state_file = "policy_preprocessor_step_3_normalizer_processor.safetensors"
    action_file = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    statistics = read(folder)
    assert {state_file, action_file} < set(statistics.file_digests)
    for name, prefix, file in (
        ("state", "observation.state", state_file),
        ("actions", "action", action_file),
    ):
        stored = safetensors.numpy.load_file(folder / file)
        for vector in ("mean", "std", "q01", "q99", "min", "max"):
            expected = stored[f"{prefix}.{vector}"]
            np.testing.assert_array_equal(getattr(feature(statistics, name), vector), expected)


def test_one_of_several_sets_is_chosen_by_id(openpi: Path) -> None:
    """case 13: a flag selects one, nothing is defaulted; ids may have a slash."""
    add(openpi, "droid", VALID)
    assert read(openpi).id == "droid"
    add(openpi, "physical-intelligence/libero", VALID)
    assert read(openpi, "physical-intelligence/libero").id == "physical-intelligence/libero"
    refused(openpi, "2 sets of statistics: droid, physical-intelligence/libero. Choose one")
    refused(openpi, "no statistics 'aloha'; tried .*aloha.*that are there: droid, phys", "aloha")


def test_a_lost_assets_folder(openpi: Path) -> None:
    """case 13: the paths tried are shown."""
    refused(openpi, r"no statistics; tried .*assets/<id>/norm_stats.json.*copy it from")
    refused(openpi, r"no statistics 'droid'; tried .*assets/droid/norm_stats.json", "droid")


@pytest.mark.parametrize("identifier", ["../other", "a/../../..", ".."])
def test_an_id_stays_inside_the_folder(openpi: Path, identifier: str) -> None:
    refused(openpi, "must be a path inside the folder", identifier)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"q01": [-1.0] * 2}, r"expected vectors of one width, got .*mean \[3\].*q01 \[2\]"),
        ({"std": [1.0] * 32}, r"std \[32\]"),
        ({"mean": [[0.5], [0.5, 0.1], [0.5]]}, "state.mean: expected a flat list of numbers"),
        ({"mean": [0.5, "0.5", 0.5]}, "state.mean: expected a flat list of numbers"),
        ({"mean": [0.5, True, 0.5]}, "state.mean: expected a flat list of numbers"),
        ({"mean": 0.5}, "state.mean: expected a flat list of numbers"),
        ({"mean": [0.5, float("nan"), 0.5]}, r"mean\[1\] is nan, expected a finite number"),
        ({"q99": [2.0, 2.0, float("inf")]}, r"q99\[2\] is inf"),
        ({"q99": [2.0, 10**400, 2.0]}, "state.q99: .*too large"),
        ({"std": [1.0, -1.0, 1.0]}, "std is -1 in dimension 1; it cannot be negative"),
        ({"q99": [2.0, 2.0, -3.0]}, "q99 - q01 is -2 in dimension 2; it cannot be negative"),
        (dict.fromkeys(("mean", "std", "q01", "q99"), []), "expected vectors of one width"),
        (dict.fromkeys(("mean", "std", "q01", "q99")), "none of mean, std"),
    ],
)
def test_unusable_vectors(openpi: Path, change: dict[str, object], match: str) -> None:
    """case 14: widths that differ within a feature and ragged lists are refused, with numbers."""
    content = copy.deepcopy(VALID)
    content["state"] |= change
    add(openpi, "arm", content)
    refused(openpi, match)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([], "must have 'state' and 'actions', got list"),
        ({"state": VALID["state"]}, "must have 'state' and 'actions', got state"),
        (VALID | {"actions": [1.0]}, "actions: expected an object, got list"),
    ],
)
def test_unusable_files(openpi: Path, content: object, match: str) -> None:
    add(openpi, "arm", content)
    refused(openpi, match)


def test_files_that_are_not_json(openpi: Path) -> None:
    add(openpi, "arm", VALID)
    (openpi / "assets" / "arm" / "norm_stats.json").write_text("{oops")
    refused(openpi, "not valid JSON")


def test_vectors_that_openpi_left_out(openpi: Path) -> None:
    content = copy.deepcopy(VALID)
    content["state"] |= {"q01": None, "q99": None}
    add(openpi, "arm", content)
    state = feature(read(openpi), "state")
    assert state.q01 is None and state.mean is not None and state.width == 3


def test_nearly_constant_dimensions_are_kept_and_named(openpi: Path) -> None:
    """case 15: q01 = q99, std 0, and a gap of 1e-9, each with its dimension."""
    content = copy.deepcopy(VALID)
    content["state"] |= {"q01": [-1.0, 2.0, 1.0], "q99": [2.0, 2.0, 1.0 + 1e-9]}
    content["actions"] |= {"std": [1.0, 0.0]}
    add(openpi, "arm", content)
    statistics = read(openpi)
    assert statistics.notes == (
        "state[1] is nearly constant: q99 - q01 = 0.",
        "state[2] is nearly constant: q99 - q01 = 1e-09.",
        "actions[1] is nearly constant: std = 0.",
    )
    np.testing.assert_array_equal(feature(statistics, "actions").std, [1.0, 0.0])


def test_lerobot_has_no_ids(lerobot: Path) -> None:
    refused(lerobot, "one set of statistics, without an id; got 'droid'", "droid")


def test_lerobot_files_that_are_missing(lerobot: Path) -> None:
    state_file = "policy_preprocessor_step_3_normalizer_processor.safetensors"
    (lerobot / state_file).unlink()
    refused(lerobot, f"{state_file}: cannot be read")
    (lerobot / "policy_preprocessor.json").unlink()
    refused(lerobot, "policy_preprocessor.json: cannot be read")


def edit_processor(folder: Path, **changes: object) -> None:
    """Changes the normaliser step; None removes the key."""
    path = folder / "policy_preprocessor.json"
    content = json.loads(path.read_text())
    step = content["steps"][3]
    step |= changes
    content["steps"][3] = {key: value for key, value in step.items() if value is not None}
    path.write_text(json.dumps(content))


def test_a_state_file_is_found_by_its_entry(lerobot: Path) -> None:
    old = lerobot / "policy_preprocessor_step_3_normalizer_processor.safetensors"
    old.rename(lerobot / "policy_preprocessor_step_2_normalizer_processor.safetensors")
    edit_processor(
        lerobot, state_file="policy_preprocessor_step_2_normalizer_processor.safetensors"
    )
    assert feature(read(lerobot), "state").width == 8


def test_a_normaliser_without_state_has_no_statistics(lerobot: Path) -> None:
    edit_processor(lerobot, state_file=None)
    statistics = read(lerobot)
    assert statistics.state is None and feature(statistics, "actions").width == 7
    assert statistics.notes == (f"{lerobot}: the checkpoint has no statistics of state.",)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"state_file": "../outside.safetensors"}, "inside the folder"),
        ({"state_file": 3}, "state_file must be a file name"),
        ({"registry_name": "other"}, "expected one step 'normalizer_processor', found 0; steps: "),
    ],
)
def test_unusable_processors(lerobot: Path, changes: dict[str, object], match: str) -> None:
    edit_processor(lerobot, **changes)
    refused(lerobot, match)


def test_processors_without_steps(lerobot: Path) -> None:
    (lerobot / "policy_preprocessor.json").write_text("{}")
    refused(lerobot, "'steps' must be a list")


def test_statistics_of_another_element_type(lerobot: Path) -> None:
    path = lerobot / "policy_preprocessor_step_3_normalizer_processor.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["observation.state.mean"] = tensors["observation.state.mean"].astype(np.int32)
    safetensors.numpy.save_file(tensors, path)
    refused(lerobot, "'observation.state.mean' is I32, expected F32 or F64")
