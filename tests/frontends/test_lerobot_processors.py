"""LeRobot's processor files: what is understood, and what stops the compile."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policyc.frontends.errors import FrontendError
from policyc.frontends.lerobot_processors import (
    LerobotProcessors,
    lerobot_features,
    processors_of_config,
    read_processors,
    relative_mask,
)

BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"


@pytest.fixture
def folder(oracles: Path, tmp_path: Path) -> Path:
    for name in (BEFORE, AFTER):
        shutil.copy(oracles / "pi05_lerobot" / "lerobot" / name, tmp_path)
    return tmp_path


def steps(folder: Path, file: str) -> list[dict[str, Any]]:
    return list(json.loads((folder / file).read_text())["steps"])


def write(folder: Path, file: str, content: list[dict[str, Any]]) -> None:
    (folder / file).write_text(json.dumps({"name": file, "steps": content}))


def read(folder: Path) -> LerobotProcessors:
    processors = read_processors(folder)
    assert processors is not None
    return processors


def test_reads_the_official_files(folder: Path) -> None:
    assert read(folder) == LerobotProcessors(
        renames=(),
        state_scaling="QUANTILES",
        action_scaling="QUANTILES",
        state_epsilon=1e-8,
        action_epsilon=1e-8,
        relative=False,
        excluded_joints=("gripper",),
        action_names=None,
        tokenizer="tokenizer",
        prompt_slots=64,
        has_relative_step=True,
    )


def test_no_files_or_one(folder: Path) -> None:
    (folder / AFTER).unlink()
    with pytest.raises(FrontendError, match=f"{AFTER}: missing, though the other"):
        read_processors(folder)
    (folder / BEFORE).unlink()
    assert read_processors(folder) is None


@pytest.mark.parametrize("file", [BEFORE, AFTER])
def test_unknown_step(file: str, folder: Path) -> None:
    """A step that is not known would change inference."""
    content = [*steps(folder, file), {"registry_name": "gaussian_blur", "config": {}}]
    write(folder, file, content)
    message = "unknown processor step 'gaussian_blur', which would change inference. Known: "
    with pytest.raises(FrontendError, match=message):
        read_processors(folder)
    content[-1] = {"class": "my.module.Step", "config": {}}
    write(folder, file, content)
    with pytest.raises(FrontendError, match="unknown processor step 'my.module.Step'"):
        read_processors(folder)


@pytest.mark.parametrize(
    ("file", "step", "settings", "message"),
    [
        (BEFORE, 4, {"bins": 512}, "unknown settings bins"),
        (BEFORE, 4, {"include_state_in_prompt": False}, "include_state_in_prompt = False"),
        (BEFORE, 5, {"padding_side": "left"}, "padding_side = 'left' is not supported"),
        (BEFORE, 6, {"float_dtype": "float16"}, "float_dtype = 'float16' is not supported"),
        (BEFORE, 3, {"norm_map": {"VISUAL": "MEAN_STD"}}, "pictures normalised by MEAN_STD"),
        (BEFORE, 3, {"norm_map": None}, "no 'norm_map'"),
        (BEFORE, 3, {"normalize_observation_keys": []}, "leaves out observation.state"),
        (BEFORE, 3, {"eps": 2}, "expected eps from 0 to 1, got 2"),
        (BEFORE, 0, {"rename_map": ["a"]}, "rename_map: expected an object"),
        (BEFORE, 2, {"exclude_joints": "gripper"}, "expected a list of names"),
        (BEFORE, 2, {"enabled": True}, "is on before the network"),
        (AFTER, 1, {"enabled": True}, "is off before the network"),
    ],
)
def test_refused_settings(
    file: str, step: int, settings: dict[str, Any], message: str, folder: Path
) -> None:
    content = steps(folder, file)
    content[step]["config"] |= settings
    write(folder, file, content)
    with pytest.raises(FrontendError, match=message):
        read_processors(folder)


@pytest.mark.parametrize("name", ["normalizer_processor", "tokenizer_processor"])
def test_missing_step(name: str, folder: Path) -> None:
    """Case 12: without its normaliser, raw values would reach the network."""
    write(folder, BEFORE, [s for s in steps(folder, BEFORE) if s["registry_name"] != name])
    with pytest.raises(FrontendError, match=f"no step {name}; it has rename_observations"):
        read_processors(folder)


def test_order_and_repetition(folder: Path) -> None:
    content = steps(folder, BEFORE)
    content[3], content[4] = content[4], content[3]
    write(folder, BEFORE, content)
    with pytest.raises(FrontendError, match="Another order computes something else"):
        read_processors(folder)
    write(folder, BEFORE, [content[0], content[0]])
    with pytest.raises(FrontendError, match="'rename_observations_processor' occurs twice"):
        read_processors(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"steps": {}}, "expected a list under 'steps', got dict"),
        ({"steps": [3]}, "step 0: expected an object, got int"),
        ({"steps": [{"registry_name": "device_processor", "config": []}]}, "no step normalizer"),
        ({"steps": [{"registry_name": "device_processor", "config": 3}]}, "object under 'config'"),
    ],
)
def test_malformed(content: object, message: str, folder: Path) -> None:
    (folder / BEFORE).write_text(json.dumps(content))
    with pytest.raises(FrontendError, match=message):
        read_processors(folder)


def test_relative_mask(folder: Path) -> None:
    """Case 62: LeRobot's rule, names compared in lower case and by substring."""
    processors = read(folder)
    assert relative_mask(processors, 3) is None
    relative = replace(processors, relative=True)
    assert relative_mask(relative, 3) == (True, True, True), "no names: all columns"
    named = replace(relative, action_names=("arm", "Left_Gripper.pos"))
    assert relative_mask(named, 3) == (True, False, True), "columns without a name are relative"
    assert relative_mask(replace(named, excluded_joints=()), 2) == (True, True)


def test_processors_of_config() -> None:
    config = {
        "normalization_mapping": {"STATE": "MEAN_STD", "ACTION": "MIN_MAX", "VISUAL": "IDENTITY"},
        "use_relative_actions": True,
        "relative_exclude_joints": ["gripper"],
        "action_feature_names": ["arm", "gripper"],
    }
    processors = processors_of_config(config)
    assert (processors.state_scaling, processors.action_scaling) == ("MEAN_STD", "MIN_MAX")
    assert relative_mask(processors, 2) == (True, False)
    with pytest.raises(FrontendError, match="no 'norm_map'"):
        processors_of_config({})


def test_features() -> None:
    config = {"input_features": {"observation.state": {"type": "STATE", "shape": [8]}}}
    feature = lerobot_features(config, "input_features")["observation.state"]
    assert (feature.kind, feature.shape) == ("STATE", (8,))
    with pytest.raises(FrontendError, match="output_features: expected an object, got None"):
        lerobot_features(config, "output_features")
    with pytest.raises(FrontendError, match="input_features.x: expected a type and a shape"):
        lerobot_features({"input_features": {"x": 3}}, "input_features")
