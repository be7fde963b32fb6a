"""Rotary position embedding of half-split pairs."""

# A kernel takes one parameter for each pointer, size and stride.
# ruff: noqa: PLR0913

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotate_heads(
    x_pointer, cos_pointer, sin_pointer, start_pointer, length_pointer, out_pointer,
    T: tl.constexpr, H: tl.constexpr, HALF: tl.constexpr, TABLE_ROWS: tl.constexpr,
    X_BATCH: tl.constexpr, X_STRIDE: tl.constexpr, X_HEAD: tl.constexpr,
    OUT_BATCH: tl.constexpr, OUT_STRIDE: tl.constexpr, OUT_HEAD: tl.constexpr,
    COS_STRIDE: tl.constexpr, SIN_STRIDE: tl.constexpr,
    HEADS_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (T, blocks of heads, batch). Row t of sample b turns by table row `start[b] + t`.

    A table row out of range reads as 0, so that junk positions can't fault. Rows from `length[b]`
    on are left out.
    """
    row = tl.program_id(0)
    heads = tl.program_id(1) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)[:, None]
    batch = tl.program_id(2)
    columns = tl.arange(0, HALF_BLOCK)[None, :]
    in_half = columns < HALF
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    heads_needed = H
    if length_pointer is not None:
        heads_needed = tl.where(row < tl.load(length_pointer + batch), H, 0)
    inside = (heads < heads_needed) & in_half
    position = row
    if start_pointer is not None:
        position += tl.load(start_pointer + batch)
    in_table = columns < tl.where((position >= 0) & (position < TABLE_ROWS), HALF, 0)
    cos = tl.load(cos_pointer + position * COS_STRIDE + columns, mask=in_table, other=0.0)
    sin = tl.load(sin_pointer + position * SIN_STRIDE + columns, mask=in_table, other=0.0)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    x = x_pointer + batch * X_BATCH + row * X_STRIDE + heads * X_HEAD + columns
    first = tl.load(x, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + HALF, mask=inside, other=0.0).to(tl.float32)
    out = out_pointer + batch * OUT_BATCH + row * OUT_STRIDE + heads * OUT_HEAD + columns
    kind = out_pointer.dtype.element_ty
    tl.store(out, (first * cos - second * sin).to(kind), mask=inside)
    tl.store(out + HALF, (second * cos + first * sin).to(kind), mask=inside)
