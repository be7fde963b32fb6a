"""Element types and tensor types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from policyc.compiler.ir.errors import TypeMismatch
from policyc.compiler.ir.types import DType, TensorType


@pytest.mark.parametrize("dtype", list(DType))
def test_element_types_and_numpy_types_correspond(dtype: DType) -> None:
    assert DType.of(dtype.numpy) is dtype
    assert dtype.size_bytes == np.zeros(1, dtype.numpy).nbytes
    assert DType(dtype.value) is dtype


def test_which_types_are_floating_point() -> None:
    assert [d.value for d in DType if d.is_float] == ["f64", "f32", "bf16"]
    assert DType.of(np.dtype(ml_dtypes.bfloat16)) is DType.BF16


def test_an_unknown_numpy_type_lists_the_known_ones() -> None:
    with pytest.raises(TypeMismatch, match="float16 has no element type; known: f64, f32, bf16"):
        DType.of(np.dtype(np.float16))


@pytest.mark.parametrize(
    ("kind", "text", "count", "size"),
    [
        (TensorType(DType.BF16, (2, 816, 256)), "bf16[2,816,256]", 417792, 835584),
        (TensorType(DType.I32, ()), "i32[]", 1, 4),
        (TensorType(DType.F64, (0, 3)), "f64[0,3]", 0, 0),
    ],
)
def test_sizes_and_text(kind: TensorType, text: str, count: int, size: int) -> None:
    assert (str(kind), kind.element_count, kind.size_bytes) == (text, count, size)
    assert kind.rank == len(kind.shape)


def test_with_dtype_and_with_shape_change_one_part() -> None:
    kind = TensorType(DType.F32, (2, 3))
    assert kind.with_dtype(DType.BF16) == TensorType(DType.BF16, (2, 3))
    assert kind.with_shape((6,)) == TensorType(DType.F32, (6,))
