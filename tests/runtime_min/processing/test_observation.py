"""Each rule of an observation's layout, with its message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policyc.runtime_min.errors import InputError, ObservationError
from policyc.runtime_min.processing import Processing

Observation = dict[str, Any]


def refused(processing: Processing, observation: Observation, message: str) -> None:
    with pytest.raises(ObservationError, match=message):
        processing.prepare(observation)


def test_observation_errors_are_input_errors() -> None:
    assert issubclass(ObservationError, InputError)


@pytest.mark.parametrize("key", ["annotation.human.task", "noise", "Prompt"])
def test_unknown_keys(key: str, processing: Processing, observation: Observation) -> None:
    """Case 23: an instruction under another key is not ignored."""
    observation[key] = observation.pop("prompt")
    refused(processing, observation, f"unknown keys {key}; expected images, state, prompt")


def test_camera_names_side_by_side(processing: Processing, observation: Observation) -> None:
    """Case 19: expected and given names in one message."""
    names = ("top", "wrist", "side")
    observation["images"] = dict(zip(names, observation["images"].values(), strict=True))
    message = (
        "expected cameras: base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb; "
        "got: top, wrist, side. Unknown: top, wrist, side. .*camera map"
    )
    refused(processing, observation, message)


def test_extra_camera(processing: Processing, observation: Observation) -> None:
    """Case 19: an unknown extra key is not silently used."""
    observation["images"]["top"] = observation["images"]["base_0_rgb"]
    refused(processing, observation, "Unknown: top")


def test_no_camera(processing: Processing, observation: Observation) -> None:
    observation["images"] = {}
    refused(processing, observation, "got: none. At least one is needed")
    del observation["images"]
    refused(processing, observation, "expected a mapping of camera name to picture, got NoneType")


@pytest.mark.parametrize("width", [0, 1, 7, 9, 32, 33])
def test_state_width(width: int, processing: Processing, observation: Observation) -> None:
    """Case 24: the width of the statistics is required; both widths are in the message."""
    observation["state"] = np.zeros(width, np.float32)
    refused(processing, observation, rf"state: expected 8 numbers, got shape \({width},\)")


def test_state_of_other_shapes(processing: Processing, observation: Observation) -> None:
    observation["state"] = np.zeros((1, 8), np.float32)
    refused(processing, observation, r"got shape \(1, 8\)")
    observation["state"] = [[1.0, 2.0], [3.0]]
    refused(processing, observation, "state: expected a flat vector of numbers")


def test_state_types(processing: Processing, observation: Observation) -> None:
    """Case 30: lists and other number types are cast to float32: as the float32 call."""
    values = [1, -2, 0, 3, 1, 0, -1, 2]
    observation["state"] = np.array(values, np.float32)
    expected = processing.prepare(observation)
    for state in (values, np.array(values), np.array(values, np.float64), np.array(values, "f2")):
        observation["state"] = state
        result = processing.prepare(observation)
        for name, array in expected.items():
            np.testing.assert_array_equal(result[name], array)
    observation["state"] = np.full(8, 0.1, np.float64)
    wide = processing.prepare(observation)["state"]
    observation["state"] = np.full(8, 0.1, np.float32)
    np.testing.assert_array_equal(processing.prepare(observation)["state"], wide)


@pytest.mark.parametrize("state", [["a"] * 8, [None] * 8, [True] * 8, "12345678", [1j] * 8])
def test_state_without_numbers(
    state: object, processing: Processing, observation: Observation
) -> None:
    """Case 30: anything else is refused by name, never reinterpreted."""
    observation["state"] = state
    refused(processing, observation, "state: expected numbers")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_state_not_finite(value: float, processing: Processing, observation: Observation) -> None:
    """Case 60: named with key and index; the check can be switched off by name."""
    observation["state"][5] = value
    refused(processing, observation, rf"state: entry \[5\] is {value}")
    assert processing.prepare(observation, check_values=False)["tokens"].any()


def test_state_beyond_float32(processing: Processing, observation: Observation) -> None:
    """Case 30: a float64 that float32 cannot hold is no silent infinity."""
    observation["state"] = [0.0] * 7 + [1e300]
    refused(processing, observation, r"state: entry \[7\] is inf")


def test_prompt_is_missing(processing: Processing, observation: Observation) -> None:
    """Case 22: an error unless a default was compiled in."""
    observation["prompt"] = None
    refused(processing, observation, "prompt: missing, and the policy was compiled without")
    del observation["prompt"]
    refused(processing, observation, "prompt: missing")


@pytest.mark.parametrize("prompt", [b"pick", ["pick"], 3])
def test_prompt_is_not_text(
    prompt: object, processing: Processing, observation: Observation
) -> None:
    observation["prompt"] = prompt
    refused(processing, observation, f"prompt: expected str, got {type(prompt).__name__}")
