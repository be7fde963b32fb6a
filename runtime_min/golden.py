"""Compares a policy with the golden vectors of its bundle, stage by stage.

`golden.safetensors` holds `in/<name>` and `out/<name>` with a leading batch axis. Pictures may be
stored as `in/images_u8` [B, C, H, W, 3] where `u8 / 255 * 2 - 1` in float32 gives them exactly.
Limits stand in the manifest, one for each output, with their origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policyc.compiler.ir.errors import TensorFileError
from policyc.compiler.ir.tensor_file import TensorFile
from policyc.compiler.ir.types import Array
from policyc.runtime_min.bundle import GOLDEN_NAME, Bundle
from policyc.runtime_min.errors import BundleError
from policyc.runtime_min.manifest import Tolerance
from policyc.runtime_min.policy import Policy

_INPUT = "in/"
_OUTPUT = "out/"
_PICTURES = "images_u8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One output against its golden vector.

    `max_abs_error` and `relative_l2` (L2 of the difference over L2 of the golden vector) decide;
    `cosine` is for people. A value that is not finite makes all three NaN, which fails.
    """

    name: str
    max_abs_error: float
    relative_l2: float
    cosine: float
    limit: Tolerance

    @property
    def passed(self) -> bool:
        within_abs = self.max_abs_error <= self.limit.max_abs
        return within_abs and self.relative_l2 <= self.limit.relative_l2

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "FAIL"
        return (
            f"{self.name}: {verdict}, max abs {self.max_abs_error:.3e} (limit "
            f"{self.limit.max_abs:.3e}), relative L2 {self.relative_l2:.3e} (limit "
            f"{self.limit.relative_l2:.3e}), cosine {self.cosine:.9f}; limits: {self.limit.origin}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenReport:
    """All comparisons, in the order in which the graph computes the values."""

    device: str
    comparisons: tuple[Comparison, ...]

    @property
    def passed(self) -> bool:
        return all(comparison.passed for comparison in self.comparisons)

    @property
    def first_failure(self) -> Comparison | None:
        """The earliest value out of tolerance: where to look."""
        return next((item for item in self.comparisons if not item.passed), None)


def check_golden(policy: Policy) -> GoldenReport:
    """Run the golden inputs and compare every golden output.

    Raises:
        BundleError: the bundle has no golden vectors, or outputs and limits do not belong together.
        InputError: the golden inputs do not fit the policy.
    """
    inputs, golden = read_golden(policy.bundle)
    tolerances = policy.bundle.manifest.tolerances
    if golden.keys() != tolerances.keys() or not golden:
        raise BundleError(
            f"{policy.bundle.folder}: golden outputs {sorted(golden)} and limits "
            f"{sorted(tolerances)} differ or are empty. Compile the bundle again."
        )
    known = (*policy.signature.named, *policy.signature.outputs)
    names = sorted(golden, key=lambda name: known.index(name) if name in known else -1)
    results = policy.run_for_comparison(inputs, names)
    return GoldenReport(
        device=policy.device,
        comparisons=tuple(
            compare(name, results[name], golden[name], tolerances[name]) for name in names
        ),
    )


def read_golden(bundle: Bundle) -> tuple[dict[str, Array], dict[str, Array]]:
    """Golden inputs (pictures converted) and outputs, by name; raises BundleError."""
    if not bundle.has(GOLDEN_NAME):
        raise BundleError(
            f"{bundle.folder}: has no {GOLDEN_NAME}; there is nothing to compare with."
        )
    try:
        file = TensorFile.open(bundle.path_of(GOLDEN_NAME))
        inputs = _with_prefix(file, _INPUT)
        outputs = _with_prefix(file, _OUTPUT)
    except TensorFileError as fault:
        raise BundleError(f"{bundle.folder}: {fault}. Copy the bundle again.") from fault
    if _PICTURES in inputs:
        inputs["images"] = pictures_as_floats(inputs.pop(_PICTURES))
    return inputs, outputs


def pictures_as_floats(pictures: Array) -> NDArray[np.float32]:
    """uint8 [B, C, H, W, 3] as float32 [B, C, 3, H, W]: `u8 / 255 * 2 - 1` in float32."""
    if pictures.dtype != np.uint8 or pictures.ndim != 5 or pictures.shape[-1] != 3:
        raise BundleError(
            f"{GOLDEN_NAME}: {_INPUT}{_PICTURES} is {pictures.dtype} {pictures.shape}, expected "
            "uint8 [batch, views, height, width, 3]."
        )
    scaled = pictures.astype(np.float32) / np.float32(255) * np.float32(2) - np.float32(1)
    return np.ascontiguousarray(np.moveaxis(scaled, -1, 2))


def compare(name: str, result: Array, golden: Array, limit: Tolerance) -> Comparison:
    """Errors of `result` in float64; a shape that differs is a BundleError."""
    if result.shape != golden.shape:
        raise BundleError(
            f"{GOLDEN_NAME}: {_OUTPUT}{name} has shape {golden.shape}, the policy gives "
            f"{result.shape}."
        )
    got = result.astype(np.float64).ravel()
    expected = golden.astype(np.float64).ravel()
    difference = got - expected
    if not np.isfinite(difference).all():
        errors: Sequence[float] = (np.nan, np.nan, np.nan)
    else:
        errors = (
            float(np.max(np.abs(difference), initial=0.0)),
            _ratio(float(np.linalg.norm(difference)), float(np.linalg.norm(expected))),
            _cosine(got, expected),
        )
    return Comparison(
        name=name,
        max_abs_error=errors[0],
        relative_l2=errors[1],
        cosine=errors[2],
        limit=limit,
    )


def _ratio(error: float, size: float) -> float:
    """Relative error; for an all-zero golden vector 0 if it is met exactly, infinite otherwise."""
    if size > 0:
        return error / size
    return 0.0 if error == 0 else float("inf")


def _cosine(got: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    product = float(np.linalg.norm(got) * np.linalg.norm(expected))
    if product > 0:
        return float(got @ expected) / product
    return 1.0 if np.array_equal(got, expected) else 0.0


def _with_prefix(file: TensorFile, prefix: str) -> dict[str, Array]:
    return {
        name.removeprefix(prefix): file.read(name)
        for name in file.entries
        if name.startswith(prefix)
    }
