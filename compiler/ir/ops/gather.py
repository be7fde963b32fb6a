"""Ops that gather, scatter or count rows."""

from __future__ import annotations

import numpy as np

from policyc.compiler.ir.attributes import EmbeddingAttributes, NoAttributes, PatchifyAttributes
from policyc.compiler.ir.errors import InterpretError
from policyc.compiler.ir.ops.row import OpRow, require, require_count, require_float, widen
from policyc.compiler.ir.types import Array, DType, TensorType

Types = tuple[TensorType, ...]
Arrays = tuple[Array, ...]


def _infer_embedding(attributes: EmbeddingAttributes, operands: Types) -> Types:
    require_count(operands, 2)
    ids, table = operands
    require(ids.dtype is DType.I32, f"ids are {ids}, expected i32")
    require(table.rank == 2, f"table is {table}, expected [V, D]")
    return (TensorType(attributes.dtype, (*ids.shape, table.shape[1])),)


def _run_embedding(attributes: EmbeddingAttributes, operands: Arrays) -> Arrays:
    ids, table = operands
    if ids.min() < 0 or ids.max() >= table.shape[0]:
        raise InterpretError(
            f"ids span {ids.min()}..{ids.max()}, the table has {table.shape[0]} rows"
        )
    rows = widen(table[ids])
    return (rows * rows.dtype.type(attributes.scale),)


def _infer_patchify(attributes: PatchifyAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    x, patch = operands[0], attributes.patch
    require(x.rank == 5, f"images are {x}, expected [B, C, channels, H, W]")
    batch, cameras, channels, height, width = x.shape
    require(height % patch == 0 and width % patch == 0, f"{x} does not divide into {patch} patches")
    used = channels * patch * patch
    require(attributes.columns >= used, f"columns {attributes.columns}, a patch has {used} values")
    count = (height // patch) * (width // patch)
    return (TensorType(attributes.dtype, (batch, cameras, count, attributes.columns)),)


def _run_patchify(attributes: PatchifyAttributes, operands: Arrays) -> Arrays:
    x, p = widen(operands[0]), attributes.patch
    b, c, channels, height, width = x.shape
    x = x.reshape(b, c, channels, height // p, p, width // p, p).transpose(0, 1, 3, 5, 2, 4, 6)
    rows = x.reshape(b, c, (height // p) * (width // p), channels * p * p)
    padding = attributes.columns - rows.shape[-1]
    return (np.pad(rows, ((0, 0), (0, 0), (0, 0), (0, padding))),)


def _check_rows(x: TensorType, mask: TensorType) -> None:
    require(x.rank == 3, f"x is {x}, expected [B, S, D]")
    expected = TensorType(DType.BOOL, x.shape[:2])
    require(mask == expected, f"mask is {mask}, expected {expected}")


def _infer_compact(_: NoAttributes, operands: Types) -> Types:
    require_count(operands, 2)
    _check_rows(*operands)
    require_float(operands[0], "x")
    return (operands[0],)


def _run_compact(_: NoAttributes, operands: Arrays) -> Arrays:
    x, mask = operands
    order = np.argsort(~mask, axis=1, kind="stable")
    rows = np.take_along_axis(x, order[:, :, None], axis=1)
    kept = np.take_along_axis(mask, order, axis=1)[:, :, None]
    return (np.where(kept, rows, np.zeros((), x.dtype)),)


def _run_scatter(_: NoAttributes, operands: Arrays) -> Arrays:
    x, mask = operands
    index = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    rows = np.take_along_axis(x, index[:, :, None], axis=1)
    return (np.where(mask[:, :, None], rows, np.zeros((), x.dtype)),)


def _infer_count(_: NoAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    mask = operands[0]
    require(mask.dtype is DType.BOOL and mask.rank == 2, f"mask is {mask}, expected bool [B, S]")
    return (TensorType(DType.I32, mask.shape[:1]),)


ROWS: tuple[OpRow, ...] = (
    OpRow(
        name="embedding",
        attributes=EmbeddingAttributes,
        infer=_infer_embedding,
        reference=_run_embedding,
    ),
    OpRow(
        name="patchify",
        attributes=PatchifyAttributes,
        infer=_infer_patchify,
        reference=_run_patchify,
    ),
    OpRow(
        name="compact_rows",
        attributes=NoAttributes,
        infer=_infer_compact,
        reference=_run_compact,
    ),
    # The inverse of compact_rows: row i of the compact tensor returns to the i-th valid position.
    OpRow(
        name="scatter_rows",
        attributes=NoAttributes,
        infer=_infer_compact,
        reference=_run_scatter,
    ),
    OpRow(
        name="count_true",
        attributes=NoAttributes,
        infer=_infer_count,
        reference=lambda _, x: (x[0].sum(axis=1, dtype=np.int32),),
    ),
)
