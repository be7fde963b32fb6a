"""Ops that move or view elements without arithmetic."""

from __future__ import annotations

import math

import numpy as np

from policyc.compiler.ir.attributes import (
    AxisAttributes,
    FillAttributes,
    NoAttributes,
    PadAttributes,
    PermuteAttributes,
    RowAttributes,
    ShapeAttributes,
    SliceAttributes,
)
from policyc.compiler.ir.ops.row import Infer, OpRow, Reference, require, require_count
from policyc.compiler.ir.types import Array, DType, TensorType

Types = tuple[TensorType, ...]
Arrays = tuple[Array, ...]


def _infer_reshape(attributes: ShapeAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    count = math.prod(attributes.shape)
    ok = count == operands[0].element_count
    require(ok, f"{operands[0]} does not reshape to {attributes.shape}")
    return (operands[0].with_shape(attributes.shape),)


def _infer_expand(attributes: ShapeAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    x = operands[0]
    require(x.rank == len(attributes.shape), f"{x} does not expand to {attributes.shape}")
    pairs = zip(x.shape, attributes.shape, strict=True)
    ok = all(a in (1, b) for a, b in pairs)
    require(ok, f"{x} does not expand to {attributes.shape}")
    return (x.with_shape(attributes.shape),)


def _infer_slice(attributes: SliceAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    x, axis = operands[0], attributes.axis
    require(0 <= axis < x.rank, f"axis {axis} of {x}")
    ok = 0 <= attributes.start < attributes.stop <= x.shape[axis]
    require(ok, f"slice {attributes.start}:{attributes.stop} of axis {axis} of {x}")
    size = attributes.stop - attributes.start
    return (x.with_shape((*x.shape[:axis], size, *x.shape[axis + 1 :])),)


def _run_slice(attributes: SliceAttributes, operands: Arrays) -> Arrays:
    index = (slice(None),) * attributes.axis + (slice(attributes.start, attributes.stop),)
    return (operands[0][index],)


def _infer_permute(attributes: PermuteAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    x = operands[0]
    ok = sorted(attributes.order) == list(range(x.rank))
    require(ok, f"order {attributes.order} of {x}")
    return (x.with_shape(tuple(x.shape[axis] for axis in attributes.order)),)


def _infer_row(attributes: RowAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    table = operands[0]
    ok = table.rank >= 1 and 0 <= attributes.index < table.shape[0]
    require(ok, f"row {attributes.index} of {table}")
    return (table.with_shape((1, *table.shape[1:])),)


def _infer_table_row(_: NoAttributes, operands: Types) -> Types:
    require_count(operands, 2)
    table, index = operands
    require(index == TensorType(DType.I32, ()), f"index is {index}, expected i32[]")
    return (table.with_shape((1, *table.shape[1:])),)


def _run_table_row(_: NoAttributes, operands: Arrays) -> Arrays:
    index = int(operands[1])
    return (operands[0][index : index + 1],)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _infer_concat(attributes: AxisAttributes, operands: Types) -> Types:
    require(len(operands) >= 1, "no operands")
    first, axis = operands[0], attributes.axis
    require(0 <= axis < first.rank, f"axis {axis} of {first}")
    for other in operands[1:]:
        ok = other.rank == first.rank and other.dtype is first.dtype
        ok = ok and _without(other.shape, axis) == _without(first.shape, axis)
        require(ok, f"{first} and {other} do not concatenate on axis {axis}")
    size = sum(item.shape[axis] for item in operands)
    return (first.with_shape((*first.shape[:axis], size, *first.shape[axis + 1 :])),)


def _infer_stack(attributes: AxisAttributes, operands: Types) -> Types:
    require(len(operands) >= 1, "no operands")
    first, axis = operands[0], attributes.axis
    require(0 <= axis <= first.rank, f"axis {axis} of {first}")
    for other in operands[1:]:
        require(other == first, f"{first} and {other} do not stack")
    return (first.with_shape((*first.shape[:axis], len(operands), *first.shape[axis:])),)


def _infer_pad(attributes: PadAttributes, operands: Types) -> Types:
    require_count(operands, 1)
    require(attributes.count >= 0, f"count is {attributes.count}")
    x = operands[0]
    return (x.with_shape((*x.shape[:-1], x.shape[-1] + attributes.count)),)


def _run_pad(attributes: PadAttributes, operands: Arrays) -> Arrays:
    x = operands[0]
    zeros = np.zeros((*x.shape[:-1], attributes.count), x.dtype)
    return (np.concatenate([x, zeros], axis=-1),)


def _infer_fill(attributes: FillAttributes, operands: Types) -> Types:
    require_count(operands, 0)
    return (TensorType(attributes.dtype, attributes.shape),)


def _view(name: str, attributes: type, infer: Infer, reference: Reference) -> OpRow:
    return OpRow(
        name=name,
        attributes=attributes,
        infer=infer,
        reference=reference,
        view=True,
    )


ROWS: tuple[OpRow, ...] = (
    _view("reshape", ShapeAttributes, _infer_reshape, lambda a, x: (x[0].reshape(a.shape),)),
    _view("expand", ShapeAttributes, _infer_expand, lambda a, x: (np.broadcast_to(x[0], a.shape),)),
    _view("slice", SliceAttributes, _infer_slice, _run_slice),
    _view("permute", PermuteAttributes, _infer_permute, lambda a, x: (x[0].transpose(a.order),)),
    _view("row", RowAttributes, _infer_row, lambda a, x: (x[0][a.index : a.index + 1],)),
    OpRow(
        name="table_row",
        attributes=NoAttributes,
        infer=_infer_table_row,
        reference=_run_table_row,
    ),
    OpRow(
        name="concat",
        attributes=AxisAttributes,
        infer=_infer_concat,
        reference=lambda a, x: (np.concatenate(x, axis=a.axis),),
    ),
    OpRow(
        name="stack",
        attributes=AxisAttributes,
        infer=_infer_stack,
        reference=lambda a, x: (np.stack(x, axis=a.axis),),
    ),
    OpRow(name="pad", attributes=PadAttributes, infer=_infer_pad, reference=_run_pad),
    OpRow(
        name="fill",
        attributes=FillAttributes,
        infer=_infer_fill,
        reference=lambda a, _: (np.full(a.shape, a.value, a.dtype.numpy),),
    ),
)
