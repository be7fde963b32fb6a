"""The processing descriptions of the official folders: accepted by the runtime and right."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from policyc.frontends.errors import FrontendError
from policyc.frontends.pi05_processing import emit_processing
from policyc.frontends.processing_description import ProcessingOptions
from policyc.frontends.statistics import FeatureStatistics, Statistics
from policyc.runtime_min.processing import Processing
from policyc.runtime_min.processing.schema import parse_processing

SMALL = ProcessingOptions(image_size=(56, 56), prompt_slots=64)
KEYS = ("q01", "q99", "mean", "std")
Emitted = tuple[dict[str, Any], dict[str, Path]]


def vectors(width: int) -> FeatureStatistics:
    low, high = np.linspace(-2.0, -1.0, width), np.linspace(1.0, 3.0, width)
    return FeatureStatistics(
        width=width, q01=low, q99=high, mean=low, std=high, min=low - 1, max=high + 1
    )


def statistics(state: int | None = 8, actions: int | None = 7) -> Statistics:
    return Statistics(
        id="tiny_arm",
        state=None if state is None else vectors(state),
        actions=None if actions is None else vectors(actions),
        file_digests={},
        notes=("state[3] is nearly constant",),
    )


def openpi_statistics(folder: Path) -> Statistics:
    (path,) = folder.glob("assets/*/norm_stats.json")
    stats = json.loads(path.read_text())["norm_stats"]
    features = {
        name: FeatureStatistics(
            width=len(stats[name]["q01"]), **{key: np.array(stats[name][key]) for key in KEYS}
        )
        for name in ("state", "actions")
    }
    return Statistics(id=path.parent.name, file_digests={}, notes=(), **features)


def lerobot_statistics(folder: Path) -> Statistics:
    (path,) = folder.glob("policy_preprocessor_step_*_normalizer_processor.safetensors")
    with safe_open(path, "np") as file:
        features = {
            name: FeatureStatistics(
                width=width, **{key: file.get_tensor(f"{prefix}.{key}") for key in KEYS}
            )
            for name, prefix, width in (
                ("state", "observation.state", 8),
                ("actions", "action", 7),
            )
        }
    return Statistics(id="lerobot", file_digests={}, notes=(), **features)


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def loaded(emitted: Emitted, folder: Path) -> Processing:
    """What the bundle writer and the runtime do with the result."""
    description, files = emitted
    (folder / "processing.json").write_text(json.dumps(description, allow_nan=False))
    for name, source in files.items():
        shutil.copy(source, folder / name)
    return Processing.load(folder)


@pytest.fixture
def openpi(oracles: Path) -> Path:
    return oracles / "pi05_fp32" / "openpi"


@pytest.fixture
def lerobot(oracles: Path, tmp_path: Path) -> Path:
    """A copy of the LeRobot folder without its weights, to be edited."""
    source = oracles / "pi05_lerobot" / "lerobot"
    folder = tmp_path / "lerobot"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    return folder


def emit_openpi(folder: Path, options: ProcessingOptions, stats: Statistics | None) -> Emitted:
    config = {"action_dim": 32, "action_horizon": 10}
    return emit_processing(folder, "openpi", config, stats, options)


def emit_lerobot(folder: Path, **options: Any) -> Emitted:
    chosen = ProcessingOptions(**options)
    return emit_processing(folder, "lerobot", config_of(folder), statistics(), chosen)


@pytest.mark.parametrize("name", ["pi05_fp32", "pi05_bf16"])
def test_openpi_oracle(name: str, oracles: Path, tmp_path: Path) -> None:
    """Case 20, case 73: from the folder to tokens and robot actions, all recorded cases."""
    folder = oracles / name
    stats, config = openpi_statistics(folder / "openpi"), config_of(folder / "openpi")
    processing = loaded(
        emit_processing(folder / "openpi", "openpi", config, stats, SMALL), tmp_path
    )
    slots = processing.description.cameras.slots
    with safe_open(folder / "io.safetensors", "np") as file:
        for case in json.loads((folder / "meta.json").read_text())["cases"]:
            get = {key: f"{case['name']}/{key}" for key in ("in", "out")}
            mask = file.get_tensor(f"{get['in']}/image_mask")
            pictures = file.get_tensor(f"{get['in']}/images_u8")
            observation = {
                "images": {slots[i]: pictures[i] for i in range(3) if mask[i]},
                "state": file.get_tensor(f"{get['in']}/state_raw"),
                "prompt": case["prompt"],
            }
            tensors = processing.prepare(observation)
            for key in ("tokens", "token_mask", "state", "image_mask"):
                expected = file.get_tensor(f"{get['in']}/{key}")
                np.testing.assert_array_equal(tensors[key][0], expected)
            robot = processing.finish(file.get_tensor(f"{get['out']}/actions"), observation)
            expected = file.get_tensor(f"{get['out']}/actions_robot")
            np.testing.assert_allclose(robot, expected, rtol=1e-12, atol=0)


def test_lerobot_oracle(oracles: Path, tmp_path: Path) -> None:
    """Case 20: from LeRobot's own files to tokens and robot actions, all recorded cases."""
    folder = oracles / "pi05_lerobot"
    stats, config = lerobot_statistics(folder / "lerobot"), config_of(folder / "lerobot")
    emitted = emit_processing(folder / "lerobot", "lerobot", config, stats, ProcessingOptions())
    processing = loaded(emitted, tmp_path)
    slots = processing.description.cameras.slots
    with safe_open(folder / "io.safetensors", "np") as file:
        for case in json.loads((folder / "meta.json").read_text())["cases"]:
            name = case["name"]
            present = file.get_tensor(f"{name}/in/camera_present")
            pictures = file.get_tensor(f"{name}/in/images_u8")
            observation = {
                "images": {slots[i]: pictures[i] for i in range(3) if present[i]},
                "state": file.get_tensor(f"{name}/in/state_raw"),
                "prompt": case["prompt"],
            }
            tensors = processing.prepare(observation)
            for key in ("tokens", "token_mask"):
                expected = file.get_tensor(f"{name}/in/{key}")
                np.testing.assert_array_equal(tensors[key][0], expected)
            robot = processing.finish(file.get_tensor(f"{name}/out_float32/actions"), observation)
            expected = file.get_tensor(f"{name}/out_float32/actions_robot")
            np.testing.assert_array_equal(robot, expected)


def test_trained_policy(small_policy: Path, tmp_path: Path) -> None:
    """Two of three views compiled: the third is always masked, so nothing else changes."""
    folder = small_policy / "openpi"
    options = ProcessingOptions(image_size=(112, 112), prompt_slots=48, views=2)
    stats = openpi_statistics(folder)
    emitted = emit_processing(folder, "openpi", config_of(folder), stats, options)
    processing = loaded(emitted, tmp_path)
    demos = np.load(small_policy / "demos.npz")
    observation = {
        "images": dict(zip(processing.description.cameras.slots, demos["images"][0], strict=True)),
        "state": demos["state"][0],
        "prompt": str(demos["prompt"][0]),
    }
    tensors = processing.prepare(observation)
    np.testing.assert_array_equal(tensors["tokens"][0], demos["tokens"][0])
    assert tensors["images"].shape == (1, 2, 3, 112, 112) and tensors["image_mask"].all()
    robot = processing.finish(demos["actions_f32"][0], observation)
    np.testing.assert_allclose(robot, demos["robot_f32"][0], rtol=1e-12, atol=0)


def test_openpi_defaults(openpi: Path) -> None:
    """openpi's files are silent on slots, sizes and prompt: its code decides."""
    description, files = emit_openpi(openpi, ProcessingOptions(), statistics())
    parsed = parse_processing(json.loads(json.dumps(description)))
    assert parsed.cameras.slots == ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    assert (parsed.cameras.height, parsed.cameras.width) == (224, 224)
    assert (parsed.prompt.slots, parsed.prompt.format.value) == (200, "state")
    assert (parsed.actions.horizon, parsed.actions.model_width) == (10, 32)
    assert parsed.state.required and parsed.actions.delta_mask is None
    assert parsed.notes == ("state[3] is nearly constant",)
    assert files == {"tokenizer.model": openpi / "tokenizer.model"}


def test_openpi_options(openpi: Path, tmp_path: Path) -> None:
    """Case 19, case 22, case 62, case 83: what the user decides is stored in the bundle."""
    tokenizer = tmp_path / "mine.model"
    shutil.copy(openpi / "tokenizer.model", tokenizer)
    options = ProcessingOptions(
        views=2,
        horizon=5,
        cameras=(("top", "base_0_rgb"),),
        default_prompt="wave",
        delta_mask=(True,) * 3,
        state_in_prompt=False,
        tokenizer=tokenizer,
        action_names=tuple("abcdefg"),
    )
    description, files = emit_openpi(openpi, options, statistics())
    parsed = parse_processing(description)
    assert parsed.cameras.names == ("top", "left_wrist_0_rgb")
    assert parsed.prompt.default == "wave" and parsed.prompt.format.value == "plain"
    assert parsed.actions.delta_mask == (True,) * 3 + (False,) * 4
    assert parsed.state.required, "the delta mask reads the state"
    assert parsed.actions.names == tuple("abcdefg") and parsed.actions.horizon == 5
    assert files == {"tokenizer.model": tokenizer}
    free = replace(options, delta_mask=None)
    assert not parse_processing(emit_openpi(openpi, free, statistics())[0]).state.required


def test_openpi_padded_statistics(openpi: Path) -> None:
    """Case 14, case 24: wider statistics are cut to the robot's width, if it is given."""
    options = replace(SMALL, state_width=8, action_width=7)
    parsed = parse_processing(emit_openpi(openpi, options, statistics(32, 32))[0])
    assert (parsed.state.width, parsed.actions.width) == (8, 7)
    assert parsed.actions.normalization.first == tuple(np.linspace(-2, -1, 32)[:7])
    with pytest.raises(FrontendError, match="statistics of state have 7 entries.*width is 8"):
        emit_openpi(openpi, options, statistics(7, 7))


@pytest.mark.parametrize("missing", ["state", "actions"])
@pytest.mark.parametrize("layout", ["openpi", "lerobot"])
def test_missing_statistics(missing: str, layout: str, openpi: Path, lerobot: Path) -> None:
    """Case 12: refused, never a silent identity; raw mode has to be asked for by name."""
    folder = openpi if layout == "openpi" else lerobot
    config = config_of(folder)
    incomplete = statistics(**{missing: None})
    with pytest.raises(FrontendError, match=f"no statistics for {missing}"):
        emit_processing(folder, layout, config, incomplete, SMALL)
    with pytest.raises(FrontendError, match="no statistics for"):
        emit_processing(folder, layout, config, None, SMALL)
    is_openpi = layout == "openpi"
    widths = {"state_width": 8, "action_width": 7} if is_openpi else {}
    raw = replace(SMALL, raw=True, **widths)
    parsed = parse_processing(emit_processing(folder, layout, config, None, raw)[0])
    assert parsed.state.normalization.scaling.value == "identity"
    assert parsed.actions.normalization.scaling.value == "identity"
    assert any("raw mode" in note for note in parsed.notes)


def test_lerobot_without_processor_files(lerobot: Path) -> None:
    """Case 12: the configuration's mode, with statistics from elsewhere; without them refused."""
    for path in lerobot.glob("policy_*"):
        path.unlink()
    config = config_of(lerobot)
    config["normalization_mapping"] |= {"STATE": "MEAN_STD"}
    with pytest.raises(FrontendError, match=r"no statistics for state.*mean_std"):
        emit_processing(lerobot, "lerobot", config, None, ProcessingOptions())
    emitted = emit_processing(lerobot, "lerobot", config, statistics(), ProcessingOptions())
    parsed = parse_processing(emitted[0])
    assert parsed.state.normalization.scaling.value == "mean_std"
    assert parsed.actions.normalization.scaling.value == "quantile"


@pytest.mark.parametrize("width", [7, 32])
def test_lerobot_statistics_of_other_width(width: int, lerobot: Path) -> None:
    """Case 14: both widths are in the message."""
    stats = statistics(state=width)
    message = f"statistics of state have {width} entries, but its width is 8"
    with pytest.raises(FrontendError, match=message):
        emit_processing(lerobot, "lerobot", config_of(lerobot), stats, ProcessingOptions())


def test_no_tokenizer(tmp_path: Path, lerobot: Path) -> None:
    """Case 18: found at compile time; the message names the flag."""
    with pytest.raises(FrontendError, match="no tokenizer; tried nowhere.model"):
        emit_openpi(tmp_path, replace(SMALL, tokenizer=Path("nowhere.model")), statistics())
    with pytest.raises(FrontendError, match=r"tried .*tokenizer.model. .*--tokenizer"):
        emit_openpi(tmp_path, SMALL, statistics())
    shutil.rmtree(lerobot / "tokenizer")
    with pytest.raises(FrontendError, match="tokenizer/tokenizer.json.*--tokenizer"):
        emit_lerobot(lerobot)
    edit(lerobot, "policy_preprocessor.json", 5, tokenizer_name="/home/me/tokenizer")
    with pytest.raises(FrontendError, match="'/home/me/tokenizer', which is no local folder"):
        emit_lerobot(lerobot)
    edit(lerobot, "policy_preprocessor.json", 5, tokenizer_name="../../elsewhere")
    with pytest.raises(FrontendError, match="inside the folder"):
        emit_lerobot(lerobot)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer")],
)
def test_hollow_tokenizer(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(FrontendError, match=message):
        emit_openpi(tmp_path, SMALL, statistics())


def test_unknown_layout(openpi: Path) -> None:
    with pytest.raises(FrontendError, match="layout 'onnx'; known: openpi, lerobot"):
        emit_processing(openpi, "onnx", {}, statistics(), SMALL)


def edit(folder: Path, file: str, step: int, **settings: Any) -> None:
    """Change settings of one step of a processor file."""
    path = folder / file
    content = json.loads(path.read_text())
    content["steps"][step]["config"] |= settings
    path.write_text(json.dumps(content))


def test_lerobot_renames(lerobot: Path) -> None:
    """Case 19: the checkpoint's rename map is the camera map; the user's pairs win."""
    renames = {
        "observation.images.top": "observation.images.base_0_rgb",
        "observation.images.old": "observation.images.gone",
    }
    edit(lerobot, "policy_preprocessor.json", 0, rename_map=renames)
    parsed = parse_processing(emit_lerobot(lerobot)[0])
    assert parsed.cameras.names == ("top", "left_wrist_0_rgb", "right_wrist_0_rgb")
    assert "rename_map: old -> gone reaches no camera slot; it is not used" in parsed.notes
    parsed = parse_processing(emit_lerobot(lerobot, cameras=(("mine", "base_0_rgb"),))[0])
    assert parsed.cameras.names == ("mine", "left_wrist_0_rgb", "right_wrist_0_rgb")


def test_lerobot_relative_actions(lerobot: Path) -> None:
    """Case 62: the excluded gripper stays absolute."""
    names = [*(f"joint_{index}.pos" for index in range(6)), "Gripper.pos"]
    edit(lerobot, "policy_preprocessor.json", 2, enabled=True, action_names=names)
    edit(lerobot, "policy_postprocessor.json", 1, enabled=True)
    parsed = parse_processing(emit_lerobot(lerobot)[0])
    assert parsed.actions.delta_mask == (True,) * 6 + (False,)
    assert parsed.actions.names == tuple(names)


def test_lerobot_empty_cameras(lerobot: Path) -> None:
    """Case 20: always-empty slots follow the visual features."""
    config = config_of(lerobot) | {"empty_cameras": 2}
    emitted = emit_processing(lerobot, "lerobot", config, statistics(), ProcessingOptions())
    slots = parse_processing(emitted[0]).cameras.slots
    assert slots[2:] == ("right_wrist_0_rgb", "empty_camera_0", "empty_camera_1")


def test_lerobot_old_release(lerobot: Path) -> None:
    """Files of LeRobot 0.4 lack the relative step; their prompt may have had 32 state codes."""
    for file, name in (
        ("policy_preprocessor.json", "relative_actions_processor"),
        ("policy_postprocessor.json", "absolute_actions_processor"),
    ):
        content = json.loads((lerobot / file).read_text())
        content["steps"] = [s for s in content["steps"] if s["registry_name"] != name]
        (lerobot / file).write_text(json.dumps(content))
    notes = parse_processing(emit_lerobot(lerobot)[0]).notes
    assert any(
        "0.4.x wrote 32 state codes into the prompt, this bundle writes 8" in n for n in notes
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_proprioceptive_memory": True}, "use_proprioceptive_memory adds inputs"),
        ({"chunk_size": "50"}, "chunk_size: expected an integer >= 1, got '50'"),
        ({"image_resolution": 224}, "image_resolution: expected two sizes, got 224"),
        ({"input_features": {}}, "feature 'observation.state' is missing"),
        ({"output_features": {"action": {"type": "ACTION", "shape": [2, 7]}}}, "expected a vector"),
        ({"max_state_dim": 4}, "state: the robot's width is 8, the model's 4"),
    ],
)
def test_lerobot_config(changes: dict[str, Any], message: str, lerobot: Path) -> None:
    config = config_of(lerobot) | changes
    with pytest.raises(FrontendError, match=message):
        emit_processing(lerobot, "lerobot", config, statistics(), ProcessingOptions())


def test_lerobot_scaling(lerobot: Path) -> None:
    norm_map = {"STATE": "MEAN_STD", "ACTION": "MIN_MAX", "VISUAL": "IDENTITY"}
    edit(lerobot, "policy_preprocessor.json", 3, norm_map=norm_map)
    edit(lerobot, "policy_postprocessor.json", 0, norm_map=norm_map)
    parsed = parse_processing(emit_lerobot(lerobot)[0])
    assert parsed.state.normalization.scaling.value == "mean_std"
    assert parsed.actions.normalization.scaling.value == "min_max"
    edit(lerobot, "policy_preprocessor.json", 3, norm_map=norm_map | {"STATE": "QUANTILE10"})
    with pytest.raises(FrontendError, match="'QUANTILE10' is not supported; known: QUANTILES"):
        emit_lerobot(lerobot)


@pytest.mark.parametrize(
    "options", [{"state_in_prompt": False}, {"delta_mask": (True,)}, {"state_width": 8}]
)
def test_openpi_options_on_a_lerobot_folder(options: dict[str, Any], lerobot: Path) -> None:
    with pytest.raises(FrontendError, match="LeRobot"):
        emit_lerobot(lerobot, **options)
