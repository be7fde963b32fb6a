"""Reading an observation: every rule of its layout, each with one error.

An observation is a mapping with

- `images`: camera name -> picture (see `images.py`); cameras may be left out, but not all of them;
- `state`: a flat vector in robot units, cast to float32: a list, or an integer or floating-point
  array;
- `prompt`: the instruction, a `str`; an empty one is legal.

Nothing else: a misspelt key would otherwise be ignored without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policyc.runtime_min.errors import ObservationError
from policyc.runtime_min.processing.schema import Cameras, Prompt, State

OBSERVATION_KEYS = ("images", "state", "prompt")

Observation = Mapping[str, object]


def check_keys(observation: Observation) -> None:
    """Refuse keys that the layout does not have."""
    unknown = [str(key) for key in observation if key not in OBSERVATION_KEYS]
    if unknown:
        raise ObservationError(
            f"observation: unknown keys {', '.join(unknown)}; expected "
            f"{', '.join(OBSERVATION_KEYS)}. The instruction goes under 'prompt'."
        )


def raw_state(observation: Observation, layout: State, check_values: bool) -> NDArray[np.float32]:
    """The state [W] in robot units as float32; empty where it is neither required nor given.

    Integers, lists and other floating-point types are cast to float32.

    Raises:
        ObservationError: missing though required, not numbers, another shape, or NaN / infinity.
    """
    value = observation.get("state")
    if value is None:
        if layout.required:
            raise ObservationError(
                f"state: missing; this policy reads it. "
                f"Expected {layout.width} numbers in robot units."
            )
        return np.zeros(0, np.float32)
    state = _as_numbers(value)
    if state.shape != (layout.width,):
        raise ObservationError(
            f"state: expected {layout.width} numbers, got shape {state.shape}. "
            "The width is that of the checkpoint's statistics."
        )
    with np.errstate(over="ignore"):
        narrow = state.astype(np.float32)
    if check_values:
        check_finite(narrow, "state")
    return narrow


def _as_numbers(value: object) -> NDArray[Any]:
    try:
        state = np.asarray(value)
    except ValueError as fault:
        raise ObservationError(f"state: expected a flat vector of numbers: {fault}.") from fault
    if not (np.issubdtype(state.dtype, np.floating) or np.issubdtype(state.dtype, np.integer)):
        raise ObservationError(
            f"state: expected numbers (a list, or an integer or floating-point array), got "
            f"{type(value).__name__} of dtype {state.dtype}."
        )
    return state


def check_finite(values: NDArray[np.float32], where: str) -> None:
    """Refuse NaN and infinity in a vector [W], naming key and index."""
    finite = np.isfinite(values)
    if not finite.all():
        index = int(np.argmin(finite))
        raise ObservationError(
            f"{where}: entry [{index}] is {values[index]}, expected a finite number."
        )


def read_prompt(observation: Observation, layout: Prompt) -> str:
    """The instruction, or the default that was compiled in where it is missing or None.

    Raises:
        ObservationError: missing without a default, or not a str.
    """
    prompt = observation.get("prompt")
    if prompt is None:
        prompt = layout.default
    if prompt is None:
        raise ObservationError(
            "prompt: missing, and the policy was compiled without a default. "
            "Give observation['prompt'] as a str; an empty one is legal."
        )
    if not isinstance(prompt, str):
        raise ObservationError(f"prompt: expected str, got {type(prompt).__name__}.")
    return prompt


def read_pictures(observation: Observation, cameras: Cameras) -> Mapping[str, object]:
    """The pictures by the robot's camera names; at least one, all of them known.

    Raises:
        ObservationError: no picture, an unknown name, or no mapping.
    """
    given = observation.get("images")
    expected = ", ".join(cameras.names)
    if not isinstance(given, Mapping):
        raise ObservationError(
            f"images: expected a mapping of camera name to picture, got {type(given).__name__}. "
            f"Expected cameras: {expected}."
        )
    unknown = [str(name) for name in given if name not in cameras.names]
    if unknown or not given:
        names = ", ".join(str(name) for name in given) or "none"
        raise ObservationError(
            f"images: expected cameras: {expected}; got: {names}. "
            + (f"Unknown: {', '.join(unknown)}. " if unknown else "At least one is needed. ")
            + "Rename them, or compile with a camera map."
        )
    return given
