"""Ranges of K of `split_linear`: the one rule that kernels and the numpy reference share."""

from __future__ import annotations

SPLIT_BLOCK = 64
"""Every range but the last starts and ends at a multiple of this many columns."""


def split_width(k: int, splits: int) -> int:
    """Columns of each range but the last ones: blocks of `SPLIT_BLOCK`, dealt out ceil-wise.

    Args:
        k: columns of the operands, > 0.
        splits: number of ranges, > 0.
    """
    blocks = -(-k // SPLIT_BLOCK)
    return -(-blocks // splits) * SPLIT_BLOCK


def split_ranges(k: int, splits: int) -> tuple[tuple[int, int], ...]:
    """The `splits` ranges (start, stop) that cover [0, k) in order.

    The last ranges may be shorter, or empty (start == stop == k); an empty range sums to zero.
    """
    if k <= 0 or splits <= 0:
        raise ValueError(f"split_ranges: k and splits must be positive, got k={k}, splits={splits}")
    width = split_width(k, splits)
    return tuple((min(s * width, k), min((s + 1) * width, k)) for s in range(splits))
