"""Tiles of elementwise kernels over strided views."""

from __future__ import annotations

import math

import pytest

from policyc.compiler.ir.types import DType
from policyc.kernels.copy_layout import common_axes, copy_constants, padded, tile
from policyc.kernels.layout import LayoutError
from policyc.kernels.spec import View


def view(shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
    return View(base="%0", offset=0, dtype=DType.F32, shape=shape, strides=strides)


def test_axes_merge_only_where_every_view_allows() -> None:
    plain, gapped = view((2, 3, 4), (12, 4, 1)), view((2, 3, 4), (24, 4, 1))
    assert common_axes((plain, plain)) == [(24, (1, 1))]
    assert common_axes((plain, gapped)) == [(2, (12, 24)), (12, (1, 1))]


def test_a_single_element_has_one_axis() -> None:
    assert common_axes((view((), ()), view((), ()))) == [(1, (1, 1))]
    assert common_axes((view((1, 1), (5, 5)),)) == [(1, (1,))]


def test_five_axes_are_refused() -> None:
    with pytest.raises(LayoutError, match="needs 5 axes, expected at most 4"):
        common_axes((view((2,) * 5, (2, 8, 1, 16, 32)),))


@pytest.mark.parametrize("sizes", [(1,), (7, 3), (968, 2048), (5, 4, 3, 2), (2, 5000)])
@pytest.mark.parametrize("num_warps", [1, 8])
def test_blocks_cover_every_element(sizes: tuple[int, ...], num_warps: int) -> None:
    axes = [(size, (0,)) for size in sizes]
    rows, columns, rows_block, columns_block, grid = tile(axes, num_warps)
    assert rows * columns == math.prod(sizes)
    assert grid[0] * rows_block >= rows and grid[1] * columns_block >= columns
    assert rows_block * columns_block <= 8 * 32 * num_warps
    for block in (rows_block, columns_block):
        assert block & (block - 1) == 0


def test_constants_name_four_axes_from_outermost() -> None:
    source, target = view((6, 5, 4), (4, 100, 1)), view((6, 5, 4), (20, 4, 1))
    constants, grid = copy_constants(source, target, 1)
    assert [constants[f"X_{i}"] for i in range(4)] == [0, 4, 100, 1]
    assert [constants[f"OUT_{i}"] for i in range(4)] == [0, 20, 4, 1]
    assert (constants["SIZE_1"], constants["SIZE_2"], constants["COLUMNS"]) == (6, 5, 4)
    assert grid == (1, 1, 1)
    assert padded([(3, (1,))])[:3] == [(1, (0,))] * 3
