"""Attention and rotary position embedding."""

from __future__ import annotations

import numpy as np

from policyc.compiler.ir.attributes import AttentionAttributes, RopeAttributes
from policyc.compiler.ir.ops.row import (
    OpRow,
    require,
    require_count,
    require_float,
    require_length,
    widen,
)
from policyc.compiler.ir.types import Array, DType, TensorType

Types = tuple[TensorType, ...]
Arrays = tuple[Array, ...]


def _infer_rope(attributes: RopeAttributes, operands: Types) -> Types:
    require_count(operands, 3 + attributes.start + attributes.length)
    x, cos, sin = operands[:3]
    require_float(x, "x")
    require(x.rank == 4 and x.shape[3] % 2 == 0, f"x is {x}, expected [B, T, H, D] with even D")
    half = x.shape[3] // 2
    for table in (cos, sin):
        ok = table.rank == 2 and table.shape[1] == half and table.shape[0] >= x.shape[1]
        require(ok, f"table is {table}, expected [P, {half}] with P >= {x.shape[1]}")
    if attributes.start:
        expected = TensorType(DType.I32, x.shape[:1])
        require(operands[3] == expected, f"start is {operands[3]}, expected {expected}")
    if attributes.length:
        require_length(operands[-1], x.shape[0] * x.shape[1])
    return (x.with_dtype(attributes.dtype),)


def _run_rope(attributes: RopeAttributes, operands: Arrays) -> Arrays:
    x = widen(operands[0])
    batch, rows, _, width = x.shape
    start = operands[3] if attributes.start else np.zeros(batch, np.int32)
    index = start[:, None].astype(np.int64) + np.arange(rows)  # [B, T]
    cos = widen(operands[1])[index][:, :, None, :]
    sin = widen(operands[2])[index][:, :, None, :]
    first, second = x[..., : width // 2], x[..., width // 2 :]
    return (np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1),)


def _infer_attention(attributes: AttentionAttributes, operands: Types) -> Types:
    optional = attributes.length + 2 * attributes.second + attributes.query_length
    require_count(operands, 3 + optional)
    q, k, v = operands[:3]
    for operand in (q, k, v):
        require(operand.rank == 4, f"{operand}: expected [B, T, H, D]")
        require(operand.dtype is q.dtype, f"q is {q}, got {operand}: expected one element type")
    rest = operands[3:]
    if attributes.length:
        expected = TensorType(DType.I32, q.shape[:1])
        require(rest[0] == expected, f"length is {rest[0]}, expected {expected}")
        rest = rest[1:]
    if attributes.query_length:
        require_length(operands[-1], q.shape[0] * q.shape[1])
    for keys, values in ((k, v), *([(rest[0], rest[1])] if attributes.second else [])):
        ok = keys.shape == values.shape and keys.shape[0] == q.shape[0]
        ok = ok and keys.shape[3] == q.shape[3] and q.shape[2] % keys.shape[2] == 0
        require(ok, f"q {q}, k {keys}, v {values} do not fit")
    return (q.with_dtype(attributes.dtype),)


def _run_attention(attributes: AttentionAttributes, operands: Arrays) -> Arrays:
    q, k, v = (widen(operand) for operand in operands[:3])
    batch, rows, heads, width = q.shape
    group = heads // k.shape[2]
    rest = list(operands[3:])
    valid = np.ones((batch, k.shape[1]), np.bool_)
    if attributes.length:
        valid = np.arange(k.shape[1]) < rest.pop(0)[:, None]
    if attributes.second:
        k = np.concatenate([k, widen(rest[0])], axis=1)
        v = np.concatenate([v, widen(rest[1])], axis=1)
        valid = np.concatenate([valid, np.ones((batch, rest[0].shape[1]), np.bool_)], axis=1)
    kv_heads = k.shape[2]
    grouped = q.reshape(batch, rows, kv_heads, group, width)
    packed = grouped.transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads, group * rows, width)
    logits = np.matmul(packed, k.transpose(0, 2, 3, 1)) * q.dtype.type(attributes.scale)
    logits = np.where(valid[:, None, None, :], logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    out = np.matmul(weights, v.transpose(0, 2, 1, 3))
    out = out.reshape(batch, kv_heads, group, rows, width).transpose(0, 3, 1, 2, 4)
    return (out.reshape(batch, rows, heads, width),)


ROWS: tuple[OpRow, ...] = (
    OpRow(name="rope", attributes=RopeAttributes, infer=_infer_rope, reference=_run_rope),
    OpRow(
        name="attention",
        attributes=AttentionAttributes,
        infer=_infer_attention,
        reference=_run_attention,
    ),
)
