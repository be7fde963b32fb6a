"""`Processing` end to end, against what the official code recorded."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from policyc.runtime_min.errors import BundleError, NonFiniteActions, ObservationError
from policyc.runtime_min.processing import Processing
from tests.runtime_min.processing.conftest import Load
from tests.runtime_min.processing.descriptions import lerobot_description, openpi_description

SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


class Recorded:
    """The tensors of an oracle folder's case."""

    def __init__(self, folder: Path, case: dict[str, Any]) -> None:
        self.file = safe_open(folder / "io.safetensors", "np")
        self.case = case

    def __getitem__(self, name: str) -> np.ndarray:
        return self.file.get_tensor(f"{self.case['name']}/{name}")

    def observation(self, present: np.ndarray) -> dict[str, Any]:
        pictures = self["in/images_u8"]
        images = {slot: pictures[i] for i, slot in enumerate(SLOTS) if present[i]}
        return {"images": images, "state": self["in/state_raw"], "prompt": self.case["prompt"]}


def cases(folder: Path) -> list[Recorded]:
    return [
        Recorded(folder, case) for case in json.loads((folder / "meta.json").read_text())["cases"]
    ]


def fed(picture: np.ndarray) -> np.ndarray:
    """The documented formula of the network's input."""
    return picture.transpose(2, 0, 1).astype(np.float32) / 255 * 2 - 1


@pytest.mark.parametrize("name", ["pi05_fp32", "pi05_bf16"])
def test_openpi_oracle(name: str, oracles: Path, load: Load) -> None:
    """Case 20, case 73: masked cameras and the state in the tokens, as in openpi."""
    folder = oracles / name
    processing = load(
        openpi_description(folder / "openpi", 56, 64, 10), folder / "openpi/tokenizer.model"
    )
    for recorded in cases(folder):
        mask = recorded["in/image_mask"]
        observation = recorded.observation(mask)
        result = processing.prepare(observation)
        np.testing.assert_array_equal(result["tokens"][0], recorded["in/tokens"])
        np.testing.assert_array_equal(result["token_mask"][0], recorded["in/token_mask"])
        np.testing.assert_array_equal(result["state"][0], recorded["in/state"])
        np.testing.assert_array_equal(result["image_mask"][0], mask)
        state = processing.state_normalizer.normalize(recorded["in/state_raw"])
        np.testing.assert_array_equal(state, recorded["in/state_norm"])
        for slot, picture in enumerate(recorded["in/images_u8"]):
            expected = fed(picture) if mask[slot] else np.full((3, 56, 56), -1, np.float32)
            np.testing.assert_array_equal(result["images"][0, slot], expected)
        robot = processing.finish(recorded["out/actions"], observation)
        np.testing.assert_allclose(robot, recorded["out/actions_robot"], rtol=1e-12, atol=0)


def test_first_camera_is_fed_bit_for_bit(oracles: Path, load: Load, processing: Processing) -> None:
    recorded = next(r for r in cases(oracles / "pi05_fp32") if r.case["name"] == "plain")
    images = processing.prepare(recorded.observation(np.ones(3, np.bool_)))["images"]
    with safe_open(oracles / "pi0_fp32" / "io.safetensors", "np") as file:
        expected = file.get_tensor("plain/in/image_cam0")
    assert images.dtype == np.float32
    np.testing.assert_array_equal(images[0, 0], expected)


def test_lerobot_oracle(oracles: Path, load: Load) -> None:
    """Case 20: LeRobot appends the filler of an absent camera after the present ones."""
    folder = oracles / "pi05_lerobot"
    processing = load(
        lerobot_description(folder / "lerobot"), folder / "lerobot/tokenizer/tokenizer.json"
    )
    for recorded in cases(folder):
        present = recorded["in/camera_present"]
        observation = recorded.observation(present)
        result = processing.prepare(observation)
        np.testing.assert_array_equal(result["tokens"][0], recorded["in/tokens"])
        np.testing.assert_array_equal(result["token_mask"][0], recorded["in/token_mask"])
        np.testing.assert_array_equal(result["state"][0, :8], recorded["in/state_norm"])
        np.testing.assert_array_equal(result["image_mask"][0], np.arange(3) < present.sum())
        for run in ("out_bfloat16", "out_float32"):
            robot = processing.finish(recorded[f"{run}/actions"], observation)
            assert robot.dtype == np.float64
            np.testing.assert_array_equal(robot, recorded[f"{run}/actions_robot"])


def test_trained_policy_demonstrations(small_policy: Path, load: Load) -> None:
    folder = small_policy
    processing = load(
        openpi_description(folder / "openpi", 112, 48, 16), folder / "openpi/tokenizer.model"
    )
    demos = np.load(folder / "demos.npz")
    demos = {name: demos[name] for name in demos.files}
    for index, prompt in enumerate(demos["prompt"]):
        images = dict(zip(SLOTS, demos["images"][index], strict=False))
        observation = {"images": images, "state": demos["state"][index], "prompt": str(prompt)}
        result = processing.prepare(observation)
        np.testing.assert_array_equal(result["tokens"][0], demos["tokens"][index])
        np.testing.assert_array_equal(result["token_mask"][0], demos["token_mask"][index])
        state = processing.state_normalizer.normalize(demos["state"][index])
        np.testing.assert_array_equal(state, demos["state_norm"][index])
        np.testing.assert_array_equal(result["image_mask"], [[True, True, False]])
        robot = processing.finish(demos["actions_f32"][index], observation)
        np.testing.assert_allclose(robot, demos["robot_f32"][index], rtol=1e-12, atol=0)


def test_missing_camera_in_the_middle(
    load: Load, description: dict[str, Any], tokenizer: Path, observation: dict[str, Any]
) -> None:
    """Case 20: openpi keeps the slot, LeRobot moves the filler to the end."""
    pictures = dict(observation["images"])
    del observation["images"]["left_wrist_0_rgb"]
    kept = load(description, tokenizer).prepare(observation)
    assert kept["image_mask"].tolist() == [[True, False, True]]
    assert (kept["images"][0, 1] == -1).all()
    np.testing.assert_array_equal(kept["images"][0, 2], fed(pictures["right_wrist_0_rgb"]))
    description["cameras"]["missing"] = "move_last"
    moved = load(description, tokenizer).prepare(observation)
    assert moved["image_mask"].tolist() == [[True, True, False]]
    assert (moved["images"][0, 2] == -1).all()
    np.testing.assert_array_equal(moved["images"][0, 1], fed(pictures["right_wrist_0_rgb"]))


def test_camera_map(
    load: Load, description: dict[str, Any], tokenizer: Path, observation: dict[str, Any]
) -> None:
    """Case 19: a mapping of the bundle is applied; mapped slots lose their own name."""
    description["cameras"]["camera_map"] = {"top": "base_0_rgb"}
    processing = load(description, tokenizer)
    with pytest.raises(ObservationError, match="expected cameras: top, left_wrist_0_rgb"):
        processing.prepare(observation)
    picture = observation["images"].pop("base_0_rgb")
    observation["images"]["top"] = picture
    result = processing.prepare(observation)
    assert result["image_mask"].all()
    np.testing.assert_array_equal(result["images"][0, 0], fed(picture))


def test_state_changes_the_tokens(processing: Processing, observation: dict[str, Any]) -> None:
    """Case 73: two states give two prompts; a missing state is refused."""
    first = processing.prepare(observation)["tokens"]
    observation["state"] = observation["state"] + np.float32(0.5)
    assert (processing.prepare(observation)["tokens"] != first).any()
    del observation["state"]
    with pytest.raises(ObservationError, match="state: missing; this policy reads it. Expected 8"):
        processing.prepare(observation)


def test_state_is_optional_where_nothing_reads_it(
    load: Load, description: dict[str, Any], tokenizer: Path, observation: dict[str, Any]
) -> None:
    description["state"]["required"] = False
    description["prompt"]["format"] = "plain"
    processing = load(description, tokenizer)
    with_state = processing.prepare(observation)
    del observation["state"]
    without = processing.prepare(observation)
    np.testing.assert_array_equal(with_state["tokens"], without["tokens"])
    assert with_state["state"].any() and not without["state"].any()
    assert without["state"].shape == (1, 32)


def test_two_prompts_differ(processing: Processing, observation: dict[str, Any]) -> None:
    """Case 23: the instruction under the right key is read."""
    first = processing.prepare(observation)["tokens"]
    observation["prompt"] = "open the drawer"
    assert (processing.prepare(observation)["tokens"] != first).any()


def test_results_are_the_callers_own(processing: Processing, observation: dict[str, Any]) -> None:
    first = processing.prepare(observation)
    copies = {name: array.copy() for name, array in first.items()}
    observation["images"] = {name: 255 - picture for name, picture in observation["images"].items()}
    observation["prompt"] = "something else"
    processing.prepare(observation)
    for name, array in first.items():
        np.testing.assert_array_equal(array, copies[name])


def test_shapes_and_dtypes(processing: Processing, observation: dict[str, Any]) -> None:
    result = processing.prepare(observation)
    assert {name: (array.dtype.name, array.shape) for name, array in result.items()} == {
        "images": ("float32", (1, 3, 3, 56, 56)),
        "image_mask": ("bool", (1, 3)),
        "tokens": ("int32", (1, 64)),
        "token_mask": ("bool", (1, 64)),
        "state": ("float32", (1, 32)),
    }


def test_delta_actions(
    load: Load, description: dict[str, Any], tokenizer: Path, observation: dict[str, Any]
) -> None:
    """Case 62: masked columns are relative to the observation's state; the gripper is absolute."""
    actions = np.random.default_rng(3).standard_normal((10, 32)).astype(np.float32)
    relative = load(description, tokenizer).finish(actions, observation)
    description["actions"]["delta_mask"] = [True] * 6 + [False]
    processing = load(description, tokenizer)
    for shift in (0.0, 0.75):
        observation["state"] = observation["state"] + np.float32(shift)
        expected = relative.copy()
        expected[:, :6] += observation["state"][:6].astype(np.float64)
        np.testing.assert_array_equal(processing.finish(actions, observation), expected)
    del observation["state"]
    with pytest.raises(ObservationError, match="state: missing"):
        processing.finish(actions, observation)


def test_only_robot_columns_come_back(processing: Processing, observation: dict[str, Any]) -> None:
    """Case 83: exactly the robot's columns, with names; the padding never reaches the robot."""
    actions = np.zeros((10, 32), np.float32)
    robot = processing.finish(actions, observation)
    actions[:, 7:] = 99.0
    np.testing.assert_array_equal(processing.finish(actions, observation), robot)
    assert robot.shape == (10, 7) and robot.dtype == np.float64
    assert len(processing.description.actions.names) == 7


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((10, 7), np.float32), r"expected float32 \(10, 32\), got float32 \(10, 7\)"),
        (np.zeros((10, 32), np.float64), r"expected float32 \(10, 32\), got float64"),
    ],
)
def test_finish_refuses_other_arrays(
    actions: np.ndarray, message: str, processing: Processing, observation: dict[str, Any]
) -> None:
    with pytest.raises(ObservationError, match=message):
        processing.finish(actions, observation)


def test_finish_refuses_nan(processing: Processing, observation: dict[str, Any]) -> None:
    actions = np.zeros((10, 32), np.float32)
    actions[4, 2] = np.nan
    with pytest.raises(NonFiniteActions, match="step 4, 'action_2' is nan"):
        processing.finish(actions, observation)
    actions[4, 2], actions[4, 20] = 0.0, np.nan
    processing.finish(actions, observation)


def test_normalised_state_may_not_overflow(
    load: Load, description: dict[str, Any], tokenizer: Path, observation: dict[str, Any]
) -> None:
    """Case 15: a constant dimension passes its own value; another one may not become infinite."""
    vectors = description["state"]["normalization"]["statistics"]
    vectors["q99"][3] = vectors["q01"][3] = 0.5
    processing = load(description, tokenizer)
    observation["state"][3] = 0.5
    assert processing.prepare(observation)["state"][0, 3] == -1.0
    observation["state"][3] = 3e38
    with pytest.raises(ObservationError, match=r"normalised.*entry \[3\] is inf"):
        processing.prepare(observation)


def test_load_refuses_a_folder_without_description(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="processing.json: expected a file"):
        Processing.load(tmp_path)


def test_load_needs_no_network(
    monkeypatch: pytest.MonkeyPatch,
    load: Load,
    description: dict[str, Any],
    tokenizer: Path,
    observation: dict[str, Any],
) -> None:
    """Case 18: everything is in the folder; no socket is opened."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket", refuse)
    assert load(description, tokenizer).prepare(observation)["token_mask"].any()


def test_preparation_is_fast(load: Load, description: dict[str, Any], tokenizer: Path) -> None:
    """Three full-size pictures; about 1 ms. The bound is lax for busy machines."""
    description["cameras"] |= {"height": 224, "width": 224}
    processing = load(description, tokenizer)
    pictures = np.random.default_rng(0).integers(0, 256, (3, 224, 224, 3), dtype=np.uint8)
    observation = {
        "images": dict(zip(SLOTS, pictures, strict=True)),
        "state": np.zeros(8, np.float32),
        "prompt": "pick up the cup",
    }
    durations = []
    for _ in range(20):
        start = time.perf_counter()
        processing.prepare(observation)
        durations.append(time.perf_counter() - start)
    assert min(durations) < 0.005
