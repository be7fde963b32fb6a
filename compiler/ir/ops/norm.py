"""Normalisation over the last axis, alone or together with the residual sum before it."""

from __future__ import annotations

import numpy as np

from policyc.compiler.ir.attributes import NORM_KINDS, AddNormAttributes, NormAttributes
from policyc.compiler.ir.ops.row import (
    OpRow,
    require,
    require_count,
    require_float,
    require_length,
    widen,
)
from policyc.compiler.ir.types import Array, TensorType

Types = tuple[TensorType, ...]
Arrays = tuple[Array, ...]


def normalize(kind: str, x: Array, eps: float) -> Array:
    """Root-mean-square or layer normalisation over the last axis, without affine terms."""
    epsilon = x.dtype.type(eps)
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    result: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)
    return result


def _check_vector(vector: TensorType, width: int, what: str) -> None:
    ok = vector.shape in ((width,), (1, width))
    require(ok, f"{what} is {vector}, expected [{width}] or [1,{width}]")


def _vector(array: Array) -> Array:
    return widen(array).reshape(-1)


def _infer_norm(attributes: NormAttributes, operands: Types) -> Types:
    vectors = attributes.scale + attributes.shift
    require_count(operands, 1 + vectors + attributes.length)
    x = operands[0]
    require_float(x, "x")
    if attributes.length:
        require_length(operands[-1], x.element_count // x.shape[-1])
    for vector in operands[1 : 1 + vectors]:
        _check_vector(vector, x.shape[-1], "scale or shift")
    return (x.with_dtype(attributes.dtype),)


def _run_norm(kind: str, attributes: NormAttributes, operands: Arrays) -> Arrays:
    rest = list(operands[1:])
    y = normalize(kind, widen(operands[0]), attributes.eps)
    if attributes.scale:
        y = y * _vector(rest.pop(0))
    if attributes.shift:
        y = y + _vector(rest.pop(0))
    return (y,)


def _run_rms(attributes: NormAttributes, operands: Arrays) -> Arrays:
    return _run_norm("rms", attributes, operands)


def _run_layer(attributes: NormAttributes, operands: Arrays) -> Arrays:
    return _run_norm("layer", attributes, operands)


def _infer_add_norm(attributes: AddNormAttributes, operands: Types) -> Types:
    flags = (attributes.bias, attributes.gate, attributes.scale, attributes.shift)
    require_count(operands, 2 + sum(flags) + attributes.length)
    require(attributes.kind in NORM_KINDS, f"kind is {attributes.kind}, expected {NORM_KINDS}")
    branch, residual = operands[:2]
    shape = branch.shape
    if attributes.splits:
        require(
            shape[0] == attributes.splits, f"branch is {branch}: {attributes.splits} partial sums"
        )
        shape = shape[1:]
    width = shape[-1]
    rows = TensorType(branch.dtype, shape).element_count // width
    residual_rows = residual.element_count // width
    fits = residual.shape[-1] == width and rows % residual_rows == 0
    require(fits, f"residual is {residual}, branch is {branch}")
    if attributes.length:
        require_length(operands[-1], rows)
    for vector in operands[2 : 2 + sum(flags)]:
        _check_vector(vector, width, "bias, gate, scale or shift")
    return (TensorType(attributes.sum_dtype, shape), TensorType(attributes.dtype, shape))


def _run_add_norm(attributes: AddNormAttributes, operands: Arrays) -> Arrays:
    branch, residual = widen(operands[0]), widen(operands[1])
    rest = list(operands[2:])
    if attributes.splits:
        total = branch[0]
        for part in branch[1:]:
            total = total + part
        branch = total
    if attributes.bias:
        branch = branch + _vector(rest.pop(0))
    if attributes.gate:
        branch = branch * _vector(rest.pop(0))
    width = branch.shape[-1]
    repeated = residual.reshape(1, -1, width) + branch.reshape(-1, residual.size // width, width)
    total = repeated.reshape(branch.shape)
    y = normalize(attributes.kind, total, attributes.eps)
    if attributes.scale:
        y = y * _vector(rest.pop(0))
    if attributes.shift:
        y = y + _vector(rest.pop(0))
    return (total, y)


ROWS: tuple[OpRow, ...] = (
    OpRow(
        name="rms_norm",
        attributes=NormAttributes,
        infer=_infer_norm,
        reference=_run_rms,
        rowwise=True,
    ),
    OpRow(
        name="layer_norm",
        attributes=NormAttributes,
        infer=_infer_norm,
        reference=_run_layer,
        rowwise=True,
    ),
    OpRow(
        name="add_norm",
        attributes=AddNormAttributes,
        infer=_infer_add_norm,
        reference=_run_add_norm,
    ),
)
