"""Views as strides and arguments of a call."""

from __future__ import annotations

import pytest

from policyc.compiler.ir.types import DType
from policyc.kernels.layout import (
    LayoutError,
    are_weights,
    as_bytes,
    axis_strides,
    blocks,
    collapse,
    kernel_call,
    leading_rows,
    parameters,
    power_of_two,
    require_contiguous,
    require_lengths,
    require_unit_stride,
)
from policyc.kernels.spec import View
from tests.kernels.cases import AMPERE, HOPPER


def view(shape: tuple[int, ...], strides: tuple[int, ...], base: str = "%0") -> View:
    return View(base=base, offset=0, dtype=DType.BF16, shape=shape, strides=strides)


def row_starts(rows: object, count: int) -> list[int]:
    inner, outer, stride = rows.inner, rows.outer_stride, rows.inner_stride  # type: ignore[attr-defined]
    return [(r // inner) * outer + (r % inner) * stride for r in range(count)]


@pytest.mark.parametrize(
    ("shape", "strides", "starts"),
    [
        ((5,), (1,), [0]),
        ((3, 5), (8, 1), [0, 8, 16]),
        ((2, 3, 5), (15, 5, 1), [0, 5, 10, 15, 20, 25]),
        ((2, 2, 5), (100, 5, 1), [0, 5, 100, 105]),
        ((1, 2, 1, 5), (7, 9, 3, 1), [0, 9]),
        ((2, 3, 1), (3, 1, 77), [0, 1, 2, 3, 4, 5]),
        ((2, 2, 4), (0, 4, 1), [0, 4, 0, 4]),
    ],
)
def test_rows_start_where_the_view_says(
    shape: tuple[int, ...], strides: tuple[int, ...], starts: list[int]
) -> None:
    rows = leading_rows(view(shape, strides), "x")
    assert rows.count == len(starts)
    assert row_starts(rows, rows.count) == starts


def test_rows_with_three_strides_are_refused() -> None:
    with pytest.raises(LayoutError, match="x of %0: .* need 3 strides, expected at most 2. Copy"):
        leading_rows(view((2, 2, 2, 4), (1000, 100, 10, 1)), "x")


def test_row_elements_must_be_neighbours() -> None:
    with pytest.raises(LayoutError, match="stride of the last axis is 2, expected 1"):
        leading_rows(view((2, 4), (8, 2)), "x")
    with pytest.raises(LayoutError, match="stride of the last axis is 2, expected 1"):
        require_unit_stride(view((2, 4), (8, 2)), "x")
    require_unit_stride(view((2, 1), (8, 2)), "x")


def test_contiguity() -> None:
    require_contiguous(view((2, 4), (4, 1)), "x")
    with pytest.raises(LayoutError, match="expected a contiguous buffer"):
        require_contiguous(view((2, 4), (5, 1)), "x")


def test_lengths_are_one_a_sample() -> None:
    require_lengths(None, 2, "rope")
    require_lengths(view((2,), (1,)), 2, "rope")
    with pytest.raises(LayoutError, match=r"length %0 of rope: shape \(4,\), .* contiguous \[2\]"):
        require_lengths(view((4,), (1,)), 2, "rope")


def test_collapse_keeps_repeated_axes_apart() -> None:
    assert collapse([(2, 12), (3, 4), (4, 1)]) == [(24, 1)]
    assert collapse([(2, 0), (3, 4), (4, 1)]) == [(2, 0), (12, 1)]
    assert collapse([(1, 99)]) == []


def test_small_helpers() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 72, 256)] == [1, 2, 4, 128, 256]
    assert [blocks(n, 4) for n in (1, 4, 5)] == [1, 1, 2]
    assert parameters(b=1, a=2) == (("a", 2), ("b", 1))
    assert axis_strides(None, "K") == {"K_BATCH": 0, "K_STRIDE": 0, "K_HEAD": 0}
    assert as_bytes(View(base="m", offset=0, dtype=DType.BOOL, shape=(), strides=())).dtype is (
        DType.U8
    )


def test_only_weights_are_read_early() -> None:
    weight, value = view((4,), (1,), "@w"), view((4,), (1,), "%1")
    assert are_weights([weight, weight])
    assert not are_weights([weight, value])


def test_dependent_launch_follows_the_device() -> None:
    launch = {"num_warps": 4, "num_stages": 3}
    for device in (HOPPER, AMPERE):
        call = kernel_call("m:f", {"x": 1}, {"D": 2}, (1, 1, 1), launch, device)
        assert call.pdl is device.has_dependent_launch
        assert call.constants == (("D", 2), ("PDL", device.has_dependent_launch))
        assert (call.num_warps, call.num_stages) == (4, 3)
