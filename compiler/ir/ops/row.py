"""What a row of the op table holds, and the numeric helpers that references share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from policyc.compiler.ir.errors import TypeMismatch
from policyc.compiler.ir.types import Array, DType, TensorType

Infer = Callable[[Any, tuple[TensorType, ...]], tuple[TensorType, ...]]
Reference = Callable[[Any, tuple[Array, ...]], tuple[Array, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """One op.

    Attributes:
        name: the name in nodes and text.
        attributes: the dataclass of its attributes.
        infer: attributes and operand types -> result types; raises TypeMismatch.
        reference: attributes and operand arrays -> result arrays, in numpy; results may be wider
            than
            their type, the interpreter rounds them.
        pointwise: elementwise with numpy broadcasting; may join a `pointwise` group.
        view: the result is a strided window on the first operand; no launch.
        rowwise: row i of the result depends on row i of the operands alone (first axis).
    """

    name: str
    attributes: type
    infer: Infer
    reference: Reference
    pointwise: bool = False
    view: bool = False
    rowwise: bool = False


def require(condition: bool, message: str) -> None:
    """Raise TypeMismatch with the message unless the condition holds."""
    if not condition:
        raise TypeMismatch(message)


def require_count(operands: tuple[TensorType, ...], expected: int) -> None:
    require(len(operands) == expected, f"{len(operands)} operands, expected {expected}")


def require_float(operand: TensorType, what: str) -> None:
    require(operand.dtype.is_float, f"{what} is {operand}, expected floating point")


def require_length(length: TensorType, rows: int) -> None:
    """Check an operand that counts the needed rows of each group; see `attributes`."""
    ok = length.dtype is DType.I32 and length.rank == 1 and rows % length.shape[0] == 0
    require(ok, f"length is {length}, expected i32[G] with G dividing {rows} rows")


def widen(array: Array) -> Array:
    """The array in the precision that references compute in: float64 stays, other floats become
    float32."""
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


def promoted(types: tuple[TensorType, ...]) -> DType:
    """The widest floating-point type among the operands, or their common type if none is
    floating point."""
    for dtype in (DType.F64, DType.F32, DType.BF16):
        if any(item.dtype is dtype for item in types):
            return dtype
    first = types[0].dtype
    require(
        all(item.dtype is first for item in types), f"operands differ: {[str(t) for t in types]}"
    )
    return first


def broadcast_shape(types: tuple[TensorType, ...]) -> tuple[int, ...]:
    """The shape of operands broadcast as numpy does; raises TypeMismatch."""
    try:
        return np.broadcast_shapes(*(item.shape for item in types))
    except ValueError:
        shapes = ", ".join(str(item) for item in types)
        raise TypeMismatch(f"shapes do not broadcast: {shapes}") from None


def activate(name: str, x: Array) -> Array:
    """Apply an activation by its name in the attributes; x is float32 or float64."""
    if name == "none":
        return x
    if name == "silu":
        return x / (1.0 + np.exp(-x))
    assert name == "gelu_tanh", f"unknown activation {name}"
    inner = np.sqrt(2.0 / np.pi).astype(x.dtype) * (x + x.dtype.type(0.044715) * x * x * x)
    result: Array = x.dtype.type(0.5) * x * (x.dtype.type(1.0) + np.tanh(inner))
    return result
