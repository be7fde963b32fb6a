"""Tiles for elementwise kernels over strided operands: three row axes and one column axis."""

from __future__ import annotations

from policyc.kernels.layout import Constant, LayoutError, blocks, power_of_two
from policyc.kernels.spec import View

Axes = list[tuple[int, tuple[int, ...]]]
"""Axes, outermost first: size, and the stride of every view."""

VALUES_PER_THREAD = 8
_COLUMN_BLOCK = 1024


def common_axes(views: tuple[View, ...]) -> Axes:
    """Axes of views of one shape, one to four: those of size 1 dropped, neighbours merged.

    Two axes merge if they continue each other in every view. Raises LayoutError if more than four
    remain.
    """
    shape = views[0].shape
    axes: Axes = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        strides = tuple(view.strides[axis] for view in views)
        if axes and axes[-1][1] == tuple(size * stride for stride in strides):
            axes[-1] = (axes[-1][0] * size, strides)
        else:
            axes.append((size, strides))
    if len(axes) > 4:
        names = ", ".join(view.base for view in views)
        raise LayoutError(
            f"views of {names}: shape {shape}, strides {[view.strides for view in views]} needs "
            f"{len(axes)} axes, expected at most 4. Copy one of them first."
        )
    return axes or [(1, (1,) * len(views))]


def tile(axes: Axes, num_warps: int) -> tuple[int, int, int, int, tuple[int, int, int]]:
    """Rows, columns, rows a block, columns a block, and the grid that covers them."""
    columns = axes[-1][0]
    rows = 1
    for size, _ in axes[:-1]:
        rows *= size
    values = VALUES_PER_THREAD * 32 * num_warps
    columns_block = min(power_of_two(columns), _COLUMN_BLOCK, values)
    rows_block = min(power_of_two(rows), values // columns_block)
    grid = (blocks(rows, rows_block), blocks(columns, columns_block), 1)
    return rows, columns, rows_block, columns_block, grid


def padded(axes: Axes) -> Axes:
    """Exactly four axes: leading ones of size 1 are added."""
    count = len(axes[0][1])
    return [(1, (0,) * count)] * (4 - len(axes)) + axes


def copy_constants(
    source: View, target: View, num_warps: int
) -> tuple[dict[str, Constant], tuple[int, int, int]]:
    """Constexpr parameters of `copy_strided`, but the type, and its grid."""
    axes = common_axes((source, target))
    rows, columns, rows_block, columns_block, grid = tile(axes, num_warps)
    four = padded(axes)
    constants: dict[str, Constant] = {
        "ROWS": rows,
        "COLUMNS": columns,
        "SIZE_1": four[1][0],
        "SIZE_2": four[2][0],
        **{f"X_{i}": strides[0] for i, (_, strides) in enumerate(four)},
        **{f"OUT_{i}": strides[1] for i, (_, strides) in enumerate(four)},
        "ROWS_BLOCK": rows_block,
        "COLUMNS_BLOCK": columns_block,
    }
    return constants, grid
