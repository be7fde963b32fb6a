"""Row norms: rms_norm, layer_norm and add_norm. One program normalises ROWS_PER_PROGRAM rows.

Rows fall into groups of GROUP_ROWS; with lengths, only the first `length[g]` of each are read and
written.

All arithmetic is float32. Scale and shift may be read before the wait, since they are weights
(`VECTORS_EARLY`); everything else is read after it.
"""

# A kernel takes one parameter for each pointer, size and stride.
# ruff: noqa: PLR0913

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_offsets(rows, INNER: tl.constexpr, OUTER_STRIDE: tl.constexpr, STRIDE: tl.constexpr):
    """Element offsets of rows whose leading axes need up to two strides."""
    if OUTER_STRIDE == 0:
        return (rows % INNER) * STRIDE
    else:
        return (rows // INNER) * OUTER_STRIDE + (rows % INNER) * STRIDE


@triton.jit
def needed_rows(rows, length_pointer, ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr):
    """Which rows exist and, with lengths, are among the first `length[g]` of their group."""
    needed = rows < ROWS
    if length_pointer is not None:
        length = tl.load(length_pointer + rows // GROUP_ROWS, mask=needed, other=0)
        needed = needed & (rows % GROUP_ROWS < length)
    return needed


@triton.jit
def load_vector(pointer, columns, in_row, default: tl.constexpr):
    """A vector over the row as float32 [1, BLOCK], or `default` everywhere if it is absent."""
    if pointer is None:
        return tl.full([1, columns.shape[1]], default, tl.float32)
    else:
        return tl.load(pointer + columns, mask=in_row, other=0.0).to(tl.float32)


@triton.jit
def normalize(x, in_row, eps, D: tl.constexpr, LAYER: tl.constexpr):
    """Layer or root-mean-square normalisation of [R, BLOCK]; columns outside the row hold 0."""
    if LAYER:
        mean = tl.sum(x, axis=1) / D
        x = tl.where(in_row, x - mean[:, None], 0.0)
    variance = tl.sum(x * x, axis=1) / D
    return x * (1.0 / tl.sqrt_rn(variance + eps))[:, None]


@triton.jit
def norm_rows(
    x_pointer, scale_pointer, shift_pointer, length_pointer, y_pointer, eps,
    ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr, D: tl.constexpr, LAYER: tl.constexpr,
    X_INNER: tl.constexpr, X_OUTER_STRIDE: tl.constexpr, X_STRIDE: tl.constexpr,
    Y_INNER: tl.constexpr, Y_OUTER_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr,
    ROWS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr,
    VECTORS_EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`y = norm(x) * scale + shift`, row by row."""
    rows = tl.program_id(0) * ROWS_PER_PROGRAM + tl.arange(0, ROWS_PER_PROGRAM)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    in_row = columns < D
    if VECTORS_EARLY:
        scale = load_vector(scale_pointer, columns, in_row, 1.0)
        shift = load_vector(shift_pointer, columns, in_row, 0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if not VECTORS_EARLY:
        scale = load_vector(scale_pointer, columns, in_row, 1.0)
        shift = load_vector(shift_pointer, columns, in_row, 0.0)
    inside = needed_rows(rows, length_pointer, ROWS, GROUP_ROWS) & in_row
    x_offsets = row_offsets(rows, X_INNER, X_OUTER_STRIDE, X_STRIDE) + columns
    x = tl.load(x_pointer + x_offsets, mask=inside, other=0.0).to(tl.float32)
    y = normalize(x, in_row, eps, D, LAYER) * scale + shift
    y_offsets = row_offsets(rows, Y_INNER, Y_OUTER_STRIDE, Y_STRIDE) + columns
    tl.store(y_pointer + y_offsets, y.to(y_pointer.dtype.element_ty), mask=inside)


@triton.jit
def add_norm_rows(
    branch_pointer, residual_pointer, bias_pointer, gate_pointer, scale_pointer, shift_pointer,
    length_pointer, sum_pointer, normed_pointer, eps,
    ROWS: tl.constexpr, GROUP_ROWS: tl.constexpr, D: tl.constexpr, LAYER: tl.constexpr,
    SPLITS: tl.constexpr, SPLIT_STRIDE: tl.constexpr, RESIDUAL_ROWS: tl.constexpr,
    BRANCH_INNER: tl.constexpr, BRANCH_OUTER_STRIDE: tl.constexpr, BRANCH_STRIDE: tl.constexpr,
    RESIDUAL_INNER: tl.constexpr, RESIDUAL_OUTER_STRIDE: tl.constexpr,
    RESIDUAL_STRIDE: tl.constexpr,
    SUM_INNER: tl.constexpr, SUM_OUTER_STRIDE: tl.constexpr, SUM_STRIDE: tl.constexpr,
    NORMED_INNER: tl.constexpr, NORMED_OUTER_STRIDE: tl.constexpr, NORMED_STRIDE: tl.constexpr,
    ROWS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr,
    VECTORS_EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`sum = residual + gate * (branch + bias)`, `normed = norm(sum) * scale + shift`.

    The branch is the sum of SPLITS partial results, added in order; the residual repeats after
    RESIDUAL_ROWS rows. The norm sees the float32 sum before it is rounded.
    """
    rows = tl.program_id(0) * ROWS_PER_PROGRAM + tl.arange(0, ROWS_PER_PROGRAM)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    in_row = columns < D
    if VECTORS_EARLY:
        bias = load_vector(bias_pointer, columns, in_row, 0.0)
        gate = load_vector(gate_pointer, columns, in_row, 1.0)
        scale = load_vector(scale_pointer, columns, in_row, 1.0)
        shift = load_vector(shift_pointer, columns, in_row, 0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if not VECTORS_EARLY:
        bias = load_vector(bias_pointer, columns, in_row, 0.0)
        gate = load_vector(gate_pointer, columns, in_row, 1.0)
        scale = load_vector(scale_pointer, columns, in_row, 1.0)
        shift = load_vector(shift_pointer, columns, in_row, 0.0)
    inside = needed_rows(rows, length_pointer, ROWS, GROUP_ROWS) & in_row
    residual_offsets = row_offsets(
        rows % RESIDUAL_ROWS, RESIDUAL_INNER, RESIDUAL_OUTER_STRIDE, RESIDUAL_STRIDE
    )
    residual = tl.load(residual_pointer + residual_offsets + columns, mask=inside, other=0.0)
    offsets = row_offsets(rows, BRANCH_INNER, BRANCH_OUTER_STRIDE, BRANCH_STRIDE) + columns
    branch = tl.load(branch_pointer + offsets, mask=inside, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        part = tl.load(branch_pointer + split * SPLIT_STRIDE + offsets, mask=inside, other=0.0)
        branch += part.to(tl.float32)
    total = tl.where(in_row, residual.to(tl.float32) + gate * (branch + bias), 0.0)
    sum_offsets = row_offsets(rows, SUM_INNER, SUM_OUTER_STRIDE, SUM_STRIDE) + columns
    tl.store(sum_pointer + sum_offsets, total.to(sum_pointer.dtype.element_ty), mask=inside)
    normed = normalize(total, in_row, eps, D, LAYER) * scale + shift
    normed_offsets = row_offsets(rows, NORMED_INNER, NORMED_OUTER_STRIDE, NORMED_STRIDE) + columns
    tl.store(
        normed_pointer + normed_offsets, normed.to(normed_pointer.dtype.element_ty), mask=inside
    )
