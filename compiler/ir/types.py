"""Element types and tensor types.

Every tensor in a graph has a fixed shape: a batch bucket is compiled as a graph of its own, and
lengths that vary at run time are ordinary values (`i32[B]`) that operations read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from policyc.compiler.ir.errors import TypeMismatch

Array = NDArray[Any]


class DType(Enum):
    """Element types; the value is the name in the text form."""

    F64 = "f64"
    F32 = "f32"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    U8 = "u8"
    BOOL = "bool"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return _NUMPY[self]

    @property
    def size_bytes(self) -> int:
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in (DType.F64, DType.F32, DType.BF16)

    @classmethod
    def of(cls, dtype: np.dtype[np.generic]) -> DType:
        """The element type of a numpy dtype; raises TypeMismatch for one that graphs do not
        have."""
        for member, candidate in _NUMPY.items():
            if candidate == dtype:
                return member
        known = ", ".join(member.value for member in cls)
        raise TypeMismatch(f"numpy dtype {dtype} has no element type; known: {known}")


_NUMPY: dict[DType, np.dtype[np.generic]] = {
    DType.F64: np.dtype(np.float64),
    DType.F32: np.dtype(np.float32),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.I64: np.dtype(np.int64),
    DType.I32: np.dtype(np.int32),
    DType.U8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape; prints as `bf16[2,816,256]`, a scalar as `i32[]`."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def element_count(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.element_count * self.dtype.size_bytes

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(self.dtype, shape)
