"""Golden vectors: an input, what the adapter makes of it in float32, and limits for the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from policyc.compiler.ir.types import Array, DType
from policyc.frontends.adapter import run_reference
from policyc.frontends.policy import PreparedPolicy
from policyc.runtime_min.manifest import Tolerance

PICTURES = "images"
PICTURES_AS_BYTES = "images_u8"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRule:
    """Limits of one precision: `relative_l2`, and `of_largest` times the golden vector's largest
    value."""

    relative_l2: float
    of_largest: float
    origin: str


LIMITS: Mapping[DType, LimitRule] = {
    DType.F32: LimitRule(
        relative_l2=2e-5,
        of_largest=2e-4,
        origin="float32: 3 times what the official code reaches against float64 on the recorded "
        "observations of a trained policy (relative 6e-6, largest error 2.5e-4 of 1.02)",
    ),
    DType.BF16: LimitRule(
        relative_l2=5e-2,
        of_largest=2.5e-1,
        origin="bf16: relative error 2 times that of the official bf16 code against float64 on the "
        "pi0.5 fixtures (2.5e-2); a single value within a quarter of the largest one",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenVectors:
    """Tensors of `golden.safetensors` by name, and a limit for each output."""

    tensors: Mapping[str, Array]
    tolerances: Mapping[str, Tolerance]


def make_golden(prepared: PreparedPolicy, batch: int, precision: DType) -> GoldenVectors:
    """Run the adapter eagerly in float32 on the family's golden input.

    Args:
        prepared: the checkpoint's policy.
        batch: batch size of the vectors.
        precision: element type of the bundle's products, which decides the limits.
    """
    model = prepared.model(batch)
    inputs = prepared.golden_inputs(batch)
    values = run_reference(model, prepared.read_weight, inputs, torch.float32)
    outputs = {name: values[name] for name in (*model.outputs, *model.named)}
    tensors = _stored_inputs(inputs)
    tensors |= {f"out/{name}": np.ascontiguousarray(array) for name, array in outputs.items()}
    return GoldenVectors(
        tensors=tensors,
        tolerances={name: _limit(array, LIMITS[precision]) for name, array in outputs.items()},
    )


def _limit(array: Array, rule: LimitRule) -> Tolerance:
    largest = float(np.abs(array).max())
    return Tolerance(
        max_abs=rule.of_largest * largest, relative_l2=rule.relative_l2, origin=rule.origin
    )


def _stored_inputs(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs under `in/`; pictures as bytes [B, C, H, W, 3], which give them back exactly."""
    tensors = {f"in/{name}": array for name, array in inputs.items() if name != PICTURES}
    if PICTURES in inputs:
        pixels = (inputs[PICTURES] + 1) * np.float32(127.5)
        bytes_last = np.rint(pixels).astype(np.uint8).transpose(0, 1, 3, 4, 2)
        again = bytes_last.astype(np.float32) / np.float32(255) * np.float32(2) - np.float32(1)
        exact = np.array_equal(again.transpose(0, 1, 4, 2, 3), inputs[PICTURES])
        assert exact, "golden pictures are not bytes in the model's range"
        tensors[f"in/{PICTURES_AS_BYTES}"] = np.ascontiguousarray(bytes_last)
    return tensors
