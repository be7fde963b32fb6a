"""Weights of the eager reference, and how it runs stages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from policyc.compiler.ir.graph import Rate
from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.frontends import adapter
from policyc.frontends.adapter import (
    CarrySpec,
    InputSpec,
    LazyWeights,
    LoopSpec,
    ModelSpec,
    StageSpec,
    run_reference,
)


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


def toy(stages: tuple[StageSpec, ...], **inputs: TensorType) -> ModelSpec:
    return ModelSpec(
        family="toy",
        inputs=tuple(
            InputSpec(name=name, type=kind, rate=Rate.OBSERVATION) for name, kind in inputs.items()
        ),
        weights={"w": TensorType(DType.F32, (1, 1))},
        constants={},
        stages=stages,
        outputs=(),
        named=(),
    )


@pytest.mark.parametrize(("budget", "expected"), [(2 << 30, 1), (3, 5)])
def test_a_loop_converts_a_weight_once_if_it_fits(
    monkeypatch: pytest.MonkeyPatch, budget: int, expected: int
) -> None:
    reads = []

    def read(name: str) -> Array:
        reads.append(name)
        return np.float32([[2.0]])

    monkeypatch.setattr(adapter, "LOOP_WEIGHT_BYTES", budget)
    stage = StageSpec(
        name="double",
        rate=Rate.STEP,
        function=lambda w, index, x: {"next": x * w["w"]},
        inputs=(),
        loop=LoopSpec(
            count=5, carries=(CarrySpec(initial="x", inner="i", next="next", final="y"),)
        ),
    )
    model = toy((stage,), x=TensorType(DType.F32, (1, 1)))
    values = run_reference(model, read, {"x": np.float32([[1.0]])}, torch.float32)
    assert values["y"].tolist() == [[32.0]] and len(reads) == expected


@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        ([[1, 0, 1, 0], [0, 1, 0, 0]], 2),
        ([[1, 1, 1, 1], [0, 0, 0, 0]], 4),
        ([[0, 0, 0, 0], [0, 0, 0, 0]], 1),
    ],
)
def test_rows_that_do_not_exist_are_not_computed(mask: list[list[int]], rows: int) -> None:
    """The longest sample decides; what returns to its place is as with all slots."""
    stages = (
        StageSpec(
            name="compact",
            rate=Rate.OBSERVATION,
            function=lambda w, x, mask: {"few": torch.ops.policyc.compact_rows(x, mask) * 2},
            inputs=("x", "mask"),
        ),
        StageSpec(
            name="scatter",
            rate=Rate.OBSERVATION,
            function=lambda w, few, mask: {"all": torch.ops.policyc.scatter_rows(few, mask)},
            inputs=("few", "mask"),
        ),
    )
    x = np.arange(1, 25, dtype=np.float32).reshape(2, 4, 3)
    seen = np.array(mask, np.bool_)
    kinds = {"x": TensorType(DType.F32, x.shape), "mask": TensorType(DType.BOOL, seen.shape)}
    values = run_reference(toy(stages, **kinds), dict, {"x": x, "mask": seen}, torch.float32)
    assert values["few"].shape == (2, rows, 3)
    np.testing.assert_array_equal(values["all"], 2 * x * seen[:, :, None])
