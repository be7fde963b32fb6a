"""Weights of the eager reference, and how it runs stages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from policyc.compiler.ir.graph import Rate
from policyc.compiler.ir.types import DType, TensorType
from policyc.frontends.adapter import InputSpec, LazyWeights, ModelSpec, StageSpec, run_reference


def weights(dtype: torch.dtype) -> LazyWeights:
    return LazyWeights(
        read=lambda name: np.full(2, 1.5, ml_dtypes.bfloat16),
        weights=frozenset({"w"}),
        constants={"fine": np.ones(1), "plain": np.ones(1, np.float32), "id": np.ones(1, np.int32)},
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_come_in_the_precision_of_the_run(dtype: torch.dtype) -> None:
    given = weights(dtype)
    assert given["w"].dtype == dtype and given["w"].tolist() == [1.5, 1.5]
    assert given["plain"].dtype == dtype
    assert list(given) == ["fine", "id", "plain", "w"] and len(given) == 4


def test_constants_keep_float64_and_integers() -> None:
    given = weights(torch.float32)
    assert given["fine"].dtype == torch.float64 and given["id"].dtype == torch.int32


def test_an_unknown_weight_is_an_error() -> None:
    with pytest.raises(KeyError, match="bias"):
        _ = weights(torch.float32)["bias"]


def test_inputs_are_converted_and_stages_see_earlier_results() -> None:
    model = ModelSpec(
        family="toy",
        inputs=(
            InputSpec(name="x", type=TensorType(DType.F32, (2,)), rate=Rate.OBSERVATION),
            InputSpec(name="n", type=TensorType(DType.I32, (2,)), rate=Rate.OBSERVATION),
        ),
        weights={"w": TensorType(DType.F32, (2,))},
        constants={},
        stages=(
            StageSpec(
                name="a",
                rate=Rate.OBSERVATION,
                function=lambda w, x: {"y": x * w["w"]},
                inputs=("x",),
            ),
            StageSpec(
                name="b",
                rate=Rate.STEP,
                function=lambda w, y, n: {"z": y + n},
                inputs=("y", "n"),
            ),
        ),
        outputs=("z",),
        named=(),
    )
    inputs = {"x": np.float32([1, 2]), "n": np.int32([3, 4])}
    values = run_reference(model, lambda name: np.float32([2, 3]), inputs, torch.float64)
    assert values["z"].tolist() == [5.0, 10.0] and values["z"].dtype == np.float64
    assert values["n"].dtype == np.int32
