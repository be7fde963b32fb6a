"""Normalising the state and un-normalising the actions, in the arithmetic of the source code base.

openpi works in float64 and adds its epsilon in both directions; LeRobot works in float32, adds it
to a standard deviation when normalising only, and puts it in the place of a range of zero. Nothing
is clipped.

Source: openpi `transforms.py` (`Normalize`, `Unnormalize`) at 15a9616; LeRobot
`processor/normalize_processor.py` at 7427f31.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policyc.runtime_min.processing.schema import Normalization, Rule, Scaling

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalizer:
    """A normalisation with its statistics as arrays of the rule's precision."""

    scaling: Scaling
    rule: Rule
    epsilon: float
    first: Floats
    second: Floats

    @classmethod
    def of(cls, description: Normalization) -> Normalizer:
        dtype = np.float64 if description.rule is Rule.OPENPI else np.float32
        return cls(
            scaling=description.scaling,
            rule=description.rule,
            epsilon=description.epsilon,
            first=np.asarray(description.first, dtype),
            second=np.asarray(description.second, dtype),
        )

    def normalize(self, values: NDArray[np.float32]) -> Floats:
        """Robot units [.., W] to the network's units; float64 for openpi, float32 for LeRobot."""
        if self.scaling is Scaling.IDENTITY:
            return values.astype(self.first.dtype)
        if self.rule is Rule.OPENPI:
            return self._normalize_openpi(values)
        return self._normalize_lerobot(values)

    def unnormalize(self, values: NDArray[np.float32]) -> Floats:
        """The network's units [.., W] to robot units; float64 for openpi, float32 for LeRobot."""
        if self.scaling is Scaling.IDENTITY:
            return values.astype(self.first.dtype)
        if self.rule is Rule.OPENPI:
            return self._unnormalize_openpi(values)
        return self._unnormalize_lerobot(values)

    def _normalize_openpi(self, values: NDArray[np.float32]) -> Floats:
        if self.scaling is Scaling.MEAN_STD:
            return (values - self.first) / (self.second + self.epsilon)
        return (values - self.first) / (self.second - self.first + self.epsilon) * 2.0 - 1.0

    def _unnormalize_openpi(self, values: NDArray[np.float32]) -> Floats:
        if self.scaling is Scaling.MEAN_STD:
            return values * (self.second + self.epsilon) + self.first
        # The shift is rounded to float32, as there: only the product with the float64 range widens.
        half = (values + np.float32(1.0)) / np.float32(2.0)
        return half * (self.second - self.first + self.epsilon) + self.first

    def _normalize_lerobot(self, values: NDArray[np.float32]) -> Floats:
        if self.scaling is Scaling.MEAN_STD:
            return (values - self.first) / (self.second + np.float32(self.epsilon))
        return np.float32(2.0) * (values - self.first) / self._range() - np.float32(1.0)

    def _unnormalize_lerobot(self, values: NDArray[np.float32]) -> Floats:
        if self.scaling is Scaling.MEAN_STD:
            return values * self.second + self.first
        shifted = values + np.float32(1.0)
        if self.scaling is Scaling.MIN_MAX:
            return shifted / np.float32(2.0) * self._range() + self.first
        return shifted * self._range() / np.float32(2.0) + self.first

    def _range(self) -> Floats:
        span = self.second - self.first
        return np.where(span == 0, np.float32(self.epsilon), span)
