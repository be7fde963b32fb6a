"""From an observation to the network's tensors, and from its actions to robot units.

The layout of an observation is described in `observation.py`. Inputs are never written to, and
every result is a new array.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policyc.runtime_min.errors import BundleError, NonFiniteActions, ObservationError
from policyc.runtime_min.fields import parse_json
from policyc.runtime_min.processing.images import prepare_images
from policyc.runtime_min.processing.normalize import Floats, Normalizer
from policyc.runtime_min.processing.observation import (
    Observation,
    check_finite,
    check_keys,
    raw_state,
    read_pictures,
    read_prompt,
)
from policyc.runtime_min.processing.prompt import PromptEncoder
from policyc.runtime_min.processing.schema import ProcessingDescription, parse_processing

DESCRIPTION_FILE = "processing.json"
MAXIMUM_DESCRIPTION_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """The bundle's processing description with its tokenizer and statistics; stateless."""

    description: ProcessingDescription
    encoder: PromptEncoder
    state_normalizer: Normalizer
    action_normalizer: Normalizer

    @classmethod
    def load(cls, folder: Path) -> Processing:
        """Read `processing.json` and the tokenizer file of a bundle folder.

        Raises:
            BundleError: a file is missing or does not follow its format.
        """
        path = folder / DESCRIPTION_FILE
        if not path.is_file() or path.stat().st_size > MAXIMUM_DESCRIPTION_BYTES:
            raise BundleError(
                f"{path}: expected a file of at most {MAXIMUM_DESCRIPTION_BYTES} bytes; "
                "it is missing or larger. Copy the bundle again."
            )
        description = parse_processing(parse_json(path.read_bytes(), str(path)), str(path))
        return cls(
            description=description,
            encoder=PromptEncoder.load(description.prompt, folder),
            state_normalizer=Normalizer.of(description.state.normalization),
            action_normalizer=Normalizer.of(description.actions.normalization),
        )

    def prepare(
        self, observation: Observation, check_values: bool = True
    ) -> dict[str, NDArray[Any]]:
        """The network's inputs for one observation, with a leading batch axis of 1.

        Args:
            observation: see `observation.py`; `state` may be left out only where the description
                says so, `prompt` (or None in its place) only where it has a default.
            check_values: scan the state for NaN and infinity, and floating-point pictures for
                values outside [0, 1].

        Returns:
            images f32[1,C,3,H,W] in [-1,1], image_mask bool[1,C], tokens i32[1,L], token_mask
            bool[1,L], state f32[1,A], normalised and zero-padded (zeros where the state is not used
            and not given).

        Raises:
            ObservationError: names the key, what was expected and what was given.
        """
        check_keys(observation)
        state = self._normalized_state(observation, check_values)
        cameras = self.description.cameras
        pictures = read_pictures(observation, cameras)
        images, image_mask = prepare_images(pictures, cameras, check_values)
        prompt = read_prompt(observation, self.description.prompt)
        tokens, token_mask = self.encoder.tokens(prompt, state)
        padded = np.zeros((1, self.description.state.model_width), np.float32)
        padded[0, : state.shape[0]] = state
        return {
            "images": images,
            "image_mask": image_mask,
            "tokens": tokens[None],
            "token_mask": token_mask[None],
            "state": padded,
        }

    def finish(self, actions: NDArray[np.float32], observation: Observation) -> NDArray[np.float64]:
        """Robot actions f64[H,D] of the network's f32[H,A]: sliced, un-normalised, made absolute.

        Columns of the delta mask get the state of `observation` added, so the result is always
        absolute. Columns beyond D are padding of the network and mean nothing to the robot.

        Raises:
            NonFiniteActions: an action is NaN or infinite.
            ObservationError: `actions` has another shape or dtype, or the state is missing or
                wrong.
        """
        layout = self.description.actions
        expected = (layout.horizon, layout.model_width)
        if actions.shape != expected or actions.dtype != np.float32:
            raise ObservationError(
                f"actions: expected float32 {expected}, got {actions.dtype} {actions.shape}."
            )
        robot = self.action_normalizer.unnormalize(actions[:, : layout.width])
        if layout.delta_mask is not None:
            robot = robot + self._state_offset(observation).astype(robot.dtype)
        if not np.isfinite(robot).all():
            row, column = np.argwhere(~np.isfinite(robot))[0]
            raise NonFiniteActions(
                f"actions: step {row}, '{layout.names[column]}' is {robot[row, column]}. "
                "Nothing is returned; do not move the robot."
            )
        return robot.astype(np.float64)

    def _state_offset(self, observation: Observation) -> NDArray[np.float32]:
        """What is added to each column [D]: the raw state where the mask is true, else zero."""
        state = raw_state(observation, self.description.state, check_values=True)
        mask = self.description.actions.delta_mask or ()
        offset = np.zeros(len(mask), np.float32)
        for column in np.flatnonzero(mask):
            offset[column] = state[column]
        return offset

    def _normalized_state(self, observation: Observation, check_values: bool) -> Floats:
        """The normalised state [W], or an empty one where it is neither required nor given."""
        state = raw_state(observation, self.description.state, check_values)
        if state.size == 0:
            return state
        with np.errstate(over="ignore"):
            normalized = self.state_normalizer.normalize(state)
            narrow = normalized.astype(np.float32)
        if check_values:
            check_finite(narrow, "state (normalised, as float32)")
        return normalized
