"""Kernels that move elements: embedding rows, compaction by a mask, patches, strided copies."""

# A kernel takes one parameter for each pointer, size and stride.
# ruff: noqa: PLR0913

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def embed_rows(
    ids_pointer, table_pointer, out_pointer, scale,
    ROWS: tl.constexpr, VOCABULARY: tl.constexpr, D: tl.constexpr, TABLE_STRIDE: tl.constexpr,
    IDS_INNER: tl.constexpr, IDS_OUTER_STRIDE: tl.constexpr, IDS_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, blocks of columns): `table[ids] * scale`; an id out of range gives zeros."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < D
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    at = (row // IDS_INNER) * IDS_OUTER_STRIDE + (row % IDS_INNER) * IDS_STRIDE
    index = tl.load(ids_pointer + at).to(tl.int64)
    known = columns < tl.where((index >= 0) & (index < VOCABULARY), D, 0)
    source = table_pointer + index * TABLE_STRIDE + columns
    values = tl.load(source, mask=known, other=0.0).to(tl.float32) * scale
    tl.store(out_pointer + row * D + columns, values.to(out_pointer.dtype.element_ty), mask=inside)


@triton.jit
def compact_masked(
    x_pointer, mask_pointer, out_pointer,
    S: tl.constexpr, D: tl.constexpr, X_BATCH: tl.constexpr, X_STRIDE: tl.constexpr,
    MASK_BATCH: tl.constexpr, MASK_STRIDE: tl.constexpr,
    S_BLOCK: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (source rows, batch): valid rows keep their order, zeros go to the end."""
    row, batch = tl.program_id(0), tl.program_id(1)
    others = tl.arange(0, S_BLOCK)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    mask_row = mask_pointer + batch * MASK_BATCH
    valid = (tl.load(mask_row + others * MASK_STRIDE, mask=others < S, other=0) != 0).to(tl.int32)
    before = tl.sum(tl.where(others < row, valid, 0), axis=0)
    is_valid = tl.sum(tl.where(others == row, valid, 0), axis=0) != 0
    count = tl.sum(valid, axis=0)
    target = tl.where(is_valid, before, count + row - before)
    source = x_pointer + batch * X_BATCH + row * X_STRIDE + columns
    values = tl.load(source, mask=columns < tl.where(is_valid, D, 0), other=0.0)
    tl.store(out_pointer + (batch * S + target) * D + columns, values, mask=inside)


@triton.jit
def count_valid(
    mask_pointer, out_pointer,
    S: tl.constexpr, MASK_BATCH: tl.constexpr, MASK_STRIDE: tl.constexpr,
    S_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (batch): how many entries of a mask row are not 0."""
    batch = tl.program_id(0)
    others = tl.arange(0, S_BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    mask_row = mask_pointer + batch * MASK_BATCH
    valid = tl.load(mask_row + others * MASK_STRIDE, mask=others < S, other=0) != 0
    tl.store(out_pointer + batch, tl.sum(valid.to(tl.int32), axis=0))


@triton.jit
def extract_patches(
    images_pointer, out_pointer,
    CAMERAS: tl.constexpr, CHANNELS: tl.constexpr, PATCHES_X: tl.constexpr, PATCHES: tl.constexpr,
    PATCH: tl.constexpr, COLUMNS: tl.constexpr,
    BATCH_STRIDE: tl.constexpr, CAMERA_STRIDE: tl.constexpr, CHANNEL_STRIDE: tl.constexpr,
    ROW_STRIDE: tl.constexpr, COLUMN_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (patches, batch * cameras): a patch as a row (channel, row, column), then zeros."""
    patch, image = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    channel = columns // (PATCH * PATCH)
    y = (patch // PATCHES_X) * PATCH + columns // PATCH % PATCH
    x = (patch % PATCHES_X) * PATCH + columns % PATCH
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    base = (image // CAMERAS) * BATCH_STRIDE + (image % CAMERAS) * CAMERA_STRIDE
    offsets = base + channel * CHANNEL_STRIDE + y * ROW_STRIDE + x * COLUMN_STRIDE
    values = tl.load(images_pointer + offsets, mask=channel < CHANNELS, other=0.0)
    target = out_pointer + (image * PATCHES + patch) * COLUMNS + columns
    tl.store(target, values.to(out_pointer.dtype.element_ty), mask=columns < COLUMNS)


@triton.jit
def copy_strided(
    x_pointer, out_pointer,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIZE_1: tl.constexpr, SIZE_2: tl.constexpr,
    X_0: tl.constexpr, X_1: tl.constexpr, X_2: tl.constexpr, X_3: tl.constexpr,
    OUT_0: tl.constexpr, OUT_1: tl.constexpr, OUT_2: tl.constexpr, OUT_3: tl.constexpr,
    ROWS_BLOCK: tl.constexpr, COLUMNS_BLOCK: tl.constexpr, TO_BOOL: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows, blocks of columns): [size 0, SIZE_1, SIZE_2, COLUMNS] with any strides.

    Rows are the first three axes. Converts to the result's type; to booleans (bytes) by `!= 0`.
    """
    rows = tl.program_id(0) * ROWS_BLOCK + tl.arange(0, ROWS_BLOCK)[:, None]
    columns = tl.program_id(1) * COLUMNS_BLOCK + tl.arange(0, COLUMNS_BLOCK)[None, :]
    inside = (rows < ROWS) & (columns < COLUMNS)
    first, second, third = rows // (SIZE_1 * SIZE_2), rows // SIZE_2 % SIZE_1, rows % SIZE_2
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    source = first * X_0 + second * X_1 + third * X_2 + columns * X_3
    values = tl.load(x_pointer + source, mask=inside)
    if TO_BOOL:
        values = values != 0
    target = first * OUT_0 + second * OUT_1 + third * OUT_2 + columns * OUT_3
    tl.store(out_pointer + target, values.to(out_pointer.dtype.element_ty), mask=inside)
