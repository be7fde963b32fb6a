"""Made-up normalisation statistics of a robot arm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policyc.compiler.synth.dimensions import Dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and standard deviation of each dimension; quantiles are those of a normal one."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    def quantile(self, deviations: float) -> NDArray[np.float64]:
        value: NDArray[np.float64] = self.mean + deviations * self.std
        return value


# Standard deviations from the mean to the quantile of a normal distribution.
QUANTILES = {"q01": -2.3263, "q10": -1.2816, "q50": 0.0, "q90": 1.2816, "q99": 2.3263}


def draw_spread(width: int, seed: int, stream: int) -> Spread:
    """A spread for `width` dimensions; each `stream` of a seed is independent of the others."""
    raw = np.random.SFC64(np.random.SeedSequence((seed, stream))).random_raw(2 * width)
    uniform = np.asarray(raw, dtype=np.uint64) / 2.0**64
    return Spread(mean=uniform[:width] - 0.5, std=0.25 + uniform[width:])


def openpi_statistics(dimensions: Dimensions, seed: int) -> dict[str, object]:
    """The content of `norm_stats.json`."""
    widths = {"state": dimensions.robot_state, "actions": dimensions.robot_actions}
    statistics = {}
    for stream, (name, width) in enumerate(widths.items()):
        spread = draw_spread(width, seed, stream)
        statistics[name] = {
            "mean": spread.mean.tolist(),
            "std": spread.std.tolist(),
            "q01": spread.quantile(QUANTILES["q01"]).tolist(),
            "q99": spread.quantile(QUANTILES["q99"]).tolist(),
        }
    return {"norm_stats": statistics}
