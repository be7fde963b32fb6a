"""Matrix products: linear and its fused forms."""

from __future__ import annotations

import numpy as np

from policyc.compiler.ir.attributes import (
    ACTIVATIONS,
    GatedLinearAttributes,
    LinearAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.ops.row import (
    OpRow,
    activate,
    require,
    require_count,
    require_float,
    require_length,
    widen,
)
from policyc.compiler.ir.splits import split_ranges
from policyc.compiler.ir.types import Array, DType, TensorType

Types = tuple[TensorType, ...]
Arrays = tuple[Array, ...]


def _check_product(x: TensorType, w: TensorType) -> None:
    require_float(x, "x")
    require(w.rank == 2, f"w is {w}, expected [N, K]")
    require(x.rank >= 1 and x.shape[-1] == w.shape[1], f"x {x} against w {w}: K differs")
    require(x.dtype is w.dtype, f"x is {x}, w is {w}: expected one element type")


def _check_length(given: bool, operands: Types) -> None:
    if given:
        require_length(operands[-1], operands[0].element_count // operands[0].shape[-1])


def _infer_linear(attributes: LinearAttributes, operands: Types) -> Types:
    require_count(operands, 2 + attributes.bias + attributes.length)
    _check_length(attributes.length, operands)
    x, w = operands[:2]
    _check_product(x, w)
    require(attributes.activation in ACTIVATIONS, f"activation {attributes.activation}")
    if attributes.bias:
        require(operands[2].shape == w.shape[:1], f"bias is {operands[2]}, expected [{w.shape[0]}]")
    return (TensorType(attributes.dtype, (*x.shape[:-1], w.shape[0])),)


def _run_linear(attributes: LinearAttributes, operands: Arrays) -> Arrays:
    y = np.matmul(widen(operands[0]), widen(operands[1]).T)
    if attributes.bias:
        y = y + widen(operands[2])
    return (activate(attributes.activation, y),)


def _infer_split(attributes: SplitLinearAttributes, operands: Types) -> Types:
    require_count(operands, 2 + attributes.length)
    _check_length(attributes.length, operands)
    x, w = operands[:2]
    _check_product(x, w)
    require(attributes.splits >= 1, f"splits is {attributes.splits}, expected 1 or more")
    return (TensorType(DType.F32, (attributes.splits, *x.shape[:-1], w.shape[0])),)


def _run_split(attributes: SplitLinearAttributes, operands: Arrays) -> Arrays:
    x, w = widen(operands[0]), widen(operands[1])
    ranges = split_ranges(w.shape[1], attributes.splits)
    return (np.stack([np.matmul(x[..., a:b], w[:, a:b].T) for a, b in ranges]),)


def _infer_gated(attributes: GatedLinearAttributes, operands: Types) -> Types:
    require_count(operands, 2 + attributes.length)
    _check_length(attributes.length, operands)
    x, w = operands[:2]
    _check_product(x, w)
    require(w.shape[0] % 2 == 0, f"w is {w}, expected gate and up rows in turn")
    require(attributes.activation in ACTIVATIONS, f"activation {attributes.activation}")
    return (TensorType(attributes.dtype, (*x.shape[:-1], w.shape[0] // 2)),)


def _run_gated(attributes: GatedLinearAttributes, operands: Arrays) -> Arrays:
    y = np.matmul(widen(operands[0]), widen(operands[1]).T)
    return (activate(attributes.activation, y[..., 0::2]) * y[..., 1::2],)


ROWS: tuple[OpRow, ...] = (
    OpRow(
        name="linear",
        attributes=LinearAttributes,
        infer=_infer_linear,
        reference=_run_linear,
        rowwise=True,
    ),
    OpRow(
        name="split_linear",
        attributes=SplitLinearAttributes,
        infer=_infer_split,
        reference=_run_split,
    ),
    OpRow(
        name="gated_linear",
        attributes=GatedLinearAttributes,
        infer=_infer_gated,
        reference=_run_gated,
        rowwise=True,
    ),
)
