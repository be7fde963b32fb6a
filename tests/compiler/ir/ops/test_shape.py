"""Ops that move elements."""

from __future__ import annotations

import numpy as np
import pytest

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
from policyc.compiler.ir.errors import TypeMismatch
from policyc.compiler.ir.ops import OP_TABLE, row_of
from policyc.compiler.ir.types import DType
from tests.compiler.ir.ops.run import check_types, normal, run

X = normal(2, 3, 5)


def test_views() -> None:
    assert np.array_equal(run("reshape", ShapeAttributes(shape=(5, 6)), X)[0], X.reshape(5, 6))
    assert np.array_equal(
        run("permute", PermuteAttributes(order=(2, 0, 1)), X)[0][4, 1], X[1, :, 4]
    )
    assert np.array_equal(
        run("slice", SliceAttributes(axis=2, start=1, stop=4), X)[0], X[:, :, 1:4]
    )
    assert np.array_equal(run("row", RowAttributes(index=1), X)[0], X[1:2])
    wide = run("expand", ShapeAttributes(shape=(2, 3, 5)), X[:, :1])[0]
    assert np.array_equal(wide[:, 2], X[:, 0])
    views = {name for name, row in OP_TABLE.items() if row.view}
    assert views == {"reshape", "permute", "slice", "row", "expand"}


def test_copies() -> None:
    assert np.array_equal(run("concat", AxisAttributes(axis=1), X, X[:, :1])[0][:, 3], X[:, 0])
    assert np.array_equal(run("stack", AxisAttributes(axis=1), X, -X)[0][:, 1], -X)
    padded = run("pad", PadAttributes(count=2), X)[0]
    assert np.array_equal(padded[..., :5], X) and not padded[..., 5:].any()
    filled = run("fill", FillAttributes(shape=(2, 3), value=1.5, dtype=DType.F32))[0]
    assert filled.dtype == np.float32 and np.array_equal(filled, np.full((2, 3), 1.5))
    row = run("table_row", NoAttributes(), X, np.array(1, np.int32))[0]
    assert np.array_equal(row, X[1:2])


@pytest.mark.parametrize(
    ("op", "attributes", "kinds", "message"),
    [
        ("reshape", ShapeAttributes(shape=(4,)), ("f32[5]",), "does not reshape to .4,."),
        ("expand", ShapeAttributes(shape=(4,)), ("f32[2]",), "does not expand to .4,."),
        ("expand", ShapeAttributes(shape=(4, 2)), ("f32[2]",), "does not expand to .4, 2."),
        ("slice", SliceAttributes(axis=1, start=0, stop=1), ("f32[2]",), "axis 1 of f32.2."),
        ("slice", SliceAttributes(axis=0, start=1, stop=3), ("f32[2]",), "slice 1:3 of axis 0"),
        ("slice", SliceAttributes(axis=0, start=1, stop=1), ("f32[2]",), "slice 1:1 of axis 0"),
        ("permute", PermuteAttributes(order=(0, 0)), ("f32[2,3]",), "order .0, 0. of"),
        ("row", RowAttributes(index=2), ("f32[2,3]",), "row 2 of f32.2,3."),
        ("table_row", NoAttributes(), ("f32[2,3]", "i64[]"), "index is i64.., expected i32.."),
        ("concat", AxisAttributes(axis=0), (), "no operands"),
        ("concat", AxisAttributes(axis=2), ("f32[2]",), "axis 2 of f32.2."),
        (
            "concat",
            AxisAttributes(axis=0),
            ("f32[2,3]", "f32[2,4]"),
            "do not concatenate on axis 0",
        ),
        ("concat", AxisAttributes(axis=0), ("f32[2,3]", "bf16[2,3]"), "do not concatenate"),
        ("stack", AxisAttributes(axis=0), ("f32[2]", "f32[3]"), "do not stack"),
        ("stack", AxisAttributes(axis=2), ("f32[2]",), "axis 2 of f32.2."),
        ("pad", PadAttributes(count=-1), ("f32[2]",), "count is -1"),
        ("fill", FillAttributes(shape=(1,), value=0, dtype=DType.F32), ("f32[2]",), "1 operands"),
    ],
)
def test_refusals(op: str, attributes: object, kinds: tuple[str, ...], message: str) -> None:
    with pytest.raises(TypeMismatch, match=message):
        check_types(op, attributes, *kinds)


def test_an_unknown_op_lists_the_known_ones() -> None:
    with pytest.raises(TypeMismatch, match="no op conv; known: add, add_norm, add_scalar"):
        row_of("conv")
