"""From a folder to a prepared policy: settings, defaults, weights, golden inputs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler.ir.types import DType
from policyc.frontends.checkpoint import Checkpoint, sha256_of
from policyc.frontends.errors import CheckpointError
from policyc.frontends.pi05_policy import FIXED_SETTINGS, PI05, is_pi05
from policyc.frontends.policy import PolicyOptions, PreparedPolicy
from policyc.frontends.processing_description import ProcessingOptions

SMALL = ProcessingOptions(prompt_slots=64)
EMBEDDING = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"


@pytest.fixture
def folder(oracles: Path, tmp_path: Path, layout: str) -> Path:
    name = {"openpi": "pi05_fp32/openpi", "lerobot": "pi05_lerobot/lerobot"}[layout]
    return shutil.copytree(oracles / name, tmp_path / layout)


def prepared(folder: Path, options: PolicyOptions | None = None) -> PreparedPolicy:
    return PI05.prepare(Checkpoint.open(folder), options or PolicyOptions(processing=SMALL))


def configure(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


BOTH = pytest.mark.parametrize("layout", ["openpi", "lerobot"])
LEROBOT = pytest.mark.parametrize("layout", ["lerobot"])


@BOTH
def test_defaults_are_the_layouts_own(folder: Path, layout: str) -> None:
    """The time grid and the rotary frequencies are those of the code that trained the layout."""
    is_openpi = layout == "openpi"
    assert prepared(folder).layout == layout
    settings = prepared(folder).settings
    assert settings["time_grid"] == ("accumulated" if is_openpi else "closed_form")
    assert (settings["steps"], settings["horizon"], settings["views"]) == (10, 10, 3)
    in_bf16 = PolicyOptions(processing=SMALL, is_float32=False)
    assert prepared(folder, in_bf16).settings["rope"] == ("exact" if is_openpi else "rounded")
    in_float32 = PolicyOptions(processing=SMALL, is_float32=True)
    assert prepared(folder, in_float32).settings["rope"] == "exact"


@BOTH
def test_the_user_decides(folder: Path) -> None:
    options = PolicyOptions(
        processing=ProcessingOptions(prompt_slots=50, horizon=4, views=2),
        steps=3,
        rounded_rope=True,
    )
    settings = prepared(folder, options).settings
    assert {key: settings[key] for key in ("steps", "horizon", "views", "prompt_slots")} == {
        "steps": 3,
        "horizon": 4,
        "views": 2,
        "prompt_slots": 50,
    }
    assert settings["rope"] == "rounded"


@LEROBOT
def test_steps_of_the_configuration(folder: Path) -> None:
    configure(folder, num_inference_steps=4)
    assert prepared(folder).settings["steps"] == 4
    configure(folder, num_inference_steps="many")
    with pytest.raises(CheckpointError, match="num_inference_steps is 'many', expected 1 or more"):
        prepared(folder)


@LEROBOT
@pytest.mark.parametrize("name", sorted(FIXED_SETTINGS))
def test_settings_that_change_inference_stop_the_compile(folder: Path, name: str) -> None:
    """Case 10."""
    configure(folder, **{name: 77})
    with pytest.raises(CheckpointError, match=f"{name} is 77, which changes inference"):
        prepared(folder)


@BOTH
def test_unknown_and_harmless_settings(folder: Path) -> None:
    """Case 10: the harmless are ignored with one note, the unknown stop the compile by name."""
    configure(folder, wandb_project="arm", optimizer_beta=0.9)
    (note,) = (note for note in prepared(folder).notes if "settings of training" in note)
    assert "optimizer_beta" in note and "wandb_project" in note
    configure(folder, sliding_window=512)
    with pytest.raises(CheckpointError, match="unknown setting sliding_window = 512"):
        prepared(folder)


@LEROBOT
def test_paths_and_devices_of_the_training_machine_are_not_used(folder: Path) -> None:
    """Case 17: neither a base model elsewhere nor a device changes anything."""
    before = prepared(folder)
    configure(folder, device="cuda:7", pretrained_path="/home/nobody/base", license="apache-2.0")
    after = prepared(folder)
    assert after.processing == before.processing
    assert {**before.settings, "license": "apache-2.0"} == after.settings
    text = json.dumps([after.processing, after.settings])
    assert "nobody" not in text and "cuda" not in text


@BOTH
def test_weights_and_constants_by_one_name(folder: Path) -> None:
    """Case 1: the embedding comes under its own name, wherever it is stored."""
    policy = prepared(folder)
    model = policy.model(1)
    assert policy.read_weight(EMBEDDING).shape == (512, 128)
    for name, constant in model.constants.items():
        np.testing.assert_array_equal(policy.read_weight(name), constant)


@BOTH
def test_digests_of_everything_that_was_read(folder: Path, layout: str) -> None:
    digests = prepared(folder).source_digests()
    assert {"config.json", "model.safetensors"} < set(digests)
    assert digests["model.safetensors"] == sha256_of(folder / "model.safetensors")
    statistics = "norm_stats.json" if layout == "openpi" else "normalizer_processor"
    assert any(statistics in name for name in digests)


@BOTH
def test_golden_inputs(folder: Path) -> None:
    """Padding and a masked camera occur; pictures are bytes; samples of a batch differ."""
    inputs = prepared(folder).golden_inputs(2)
    again = prepared(folder).golden_inputs(2)
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, again[name])
    assert inputs["image_mask"].tolist() == [[True, True, False]] * 2
    assert inputs["token_mask"].sum(1).tolist() == [48, 47]
    assert not inputs["tokens"][~inputs["token_mask"]].any()
    levels = (inputs["images"].astype(np.float64) + 1) * 127.5
    assert np.abs(levels - np.rint(levels)).max() < 1e-4 and inputs["images"].min() == -1
    assert DType.of(inputs["noise"].dtype) is DType.F32


def test_whose_checkpoint(oracles: Path, tmp_path: Path) -> None:
    """Case 11: without a type the tensors tell."""
    assert is_pi05(Checkpoint.open(oracles / "pi05_fp32" / "openpi"))
    copy = shutil.copytree(oracles / "pi05_lerobot" / "lerobot", tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    del config["type"]
    (copy / "config.json").write_text(json.dumps(config))
    assert is_pi05(Checkpoint.open(copy))
    configure(copy, type="act")
    assert not is_pi05(Checkpoint.open(copy))
