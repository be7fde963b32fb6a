"""Ops that gather, scatter or count rows."""

from __future__ import annotations

import numpy as np
import pytest

from policyc.compiler.ir.attributes import EmbeddingAttributes, NoAttributes, PatchifyAttributes
from policyc.compiler.ir.errors import InterpretError, TypeMismatch
from tests.compiler.ir.ops.run import check_types, normal, run

MASK = np.array([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], np.bool_)
X = normal(3, 5, 2)


def test_embedding_scales_rows() -> None:
    ids, table = np.array([[2, 0, 2]], np.int32), normal(3, 4)
    got = run("embedding", EmbeddingAttributes(scale=2.5), ids, table)[0]
    assert np.array_equal(got[0], table[[2, 0, 2]] * np.float32(2.5))


@pytest.mark.parametrize("index", [-1, 3])
def test_ids_outside_the_table_are_refused(index: int) -> None:
    ids, table = np.array([[0, index]], np.int32), normal(3, 4)
    with pytest.raises(InterpretError, match="ids span .*, the table has 3 rows"):
        run("embedding", EmbeddingAttributes(), ids, table)


def test_patches_in_reading_order_with_zero_columns() -> None:
    images = normal(1, 2, 3, 4, 6)
    got = run("patchify", PatchifyAttributes(patch=2, columns=16), images)[0]
    assert got.shape == (1, 2, 6, 16)
    for patch in range(6):
        row, column = 2 * (patch // 3), 2 * (patch % 3)
        expected = images[0, 1, :, row : row + 2, column : column + 2].reshape(-1)
        assert np.array_equal(got[0, 1, patch, :12], expected)
    assert not got[..., 12:].any()


def test_compact_rows_puts_valid_rows_first_and_scatter_takes_them_back() -> None:
    compact = run("compact_rows", NoAttributes(), X, MASK)[0]
    for sample in range(3):
        valid = X[sample][MASK[sample]]
        assert np.array_equal(compact[sample, : len(valid)], valid)
        assert not compact[sample, len(valid) :].any()
    compact[0, 3:] = np.nan
    back = run("scatter_rows", NoAttributes(), compact, MASK)[0]
    assert np.array_equal(back, np.where(MASK[:, :, None], X, 0))


def test_count_true() -> None:
    counts = run("count_true", NoAttributes(), MASK)[0]
    assert counts.dtype == np.int32 and counts.tolist() == [3, 1, 0]


@pytest.mark.parametrize(
    ("op", "attributes", "kinds", "message"),
    [
        (
            "embedding",
            EmbeddingAttributes(),
            ("i64[2]", "f32[3,4]"),
            "ids are i64.2., expected i32",
        ),
        (
            "embedding",
            EmbeddingAttributes(),
            ("i32[2]", "f32[3]"),
            "table is f32.3., expected .V, D.",
        ),
        ("patchify", PatchifyAttributes(patch=2, columns=12), ("f32[1,3,4,4]",), "images are"),
        (
            "patchify",
            PatchifyAttributes(patch=3, columns=27),
            ("f32[1,1,3,4,6]",),
            "does not divide",
        ),
        ("patchify", PatchifyAttributes(patch=2, columns=11), ("f32[1,1,3,4,4]",), "columns 11"),
        (
            "compact_rows",
            NoAttributes(),
            ("f32[2,3]", "bool[2,3]"),
            "x is f32.2,3., expected .B, S",
        ),
        (
            "compact_rows",
            NoAttributes(),
            ("f32[2,3,4]", "bool[2,4]"),
            "mask is bool.2,4., expected",
        ),
        ("scatter_rows", NoAttributes(), ("i32[2,3,4]", "bool[2,3]"), "expected floating point"),
        ("count_true", NoAttributes(), ("i32[2,3]",), "mask is i32.2,3., expected bool"),
    ],
)
def test_refusals(op: str, attributes: object, kinds: tuple[str, ...], message: str) -> None:
    with pytest.raises(TypeMismatch, match=message):
        check_types(op, attributes, *kinds)
