"""K ranges of split_linear: they cover K once, in order, in blocks of 64."""

from __future__ import annotations

import pytest

from policyc.compiler.ir.splits import SPLIT_BLOCK, split_ranges, split_width


@pytest.mark.parametrize("k", [1, 63, 64, 65, 130, 304, 1024, 2048, 4304, 16384])
@pytest.mark.parametrize("splits", [1, 2, 3, 4, 7])
def test_ranges_cover_k_once_in_order(k: int, splits: int) -> None:
    ranges = split_ranges(k, splits)
    assert len(ranges) == splits
    assert [column for start, stop in ranges for column in range(start, stop)] == list(range(k))
    assert all(start % SPLIT_BLOCK == 0 for start, stop in ranges if start < stop)


def test_blocks_are_dealt_out_ceil_wise() -> None:
    assert split_ranges(2048, 4) == ((0, 512), (512, 1024), (1024, 1536), (1536, 2048))
    assert split_ranges(320, 2) == ((0, 192), (192, 320))
    assert split_width(320, 2) == 192


def test_ranges_beyond_the_last_block_are_empty() -> None:
    assert split_ranges(130, 4) == ((0, 64), (64, 128), (128, 130), (130, 130))
    assert split_ranges(64, 3) == ((0, 64), (64, 64), (64, 64))


@pytest.mark.parametrize(("k", "splits"), [(0, 1), (64, 0), (-64, 2)])
def test_sizes_must_be_positive(k: int, splits: int) -> None:
    with pytest.raises(ValueError, match=f"must be positive, got k={k}, splits={splits}"):
        split_ranges(k, splits)
