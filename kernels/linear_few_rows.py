"""Matrix products of few rows or few columns: more of the operands at hand, fewer steps.

`resident_linear` holds a tile's weights in shared memory before it waits for x; `summed_linear`
adds products up across threads, in float32, without matrix units. The rest as in `linear.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from policyc.kernels.linear_parts import activate, finish, is_needed, place


@triton.jit
def _resident_tile(
    x_map,
    w_tiles,
    out,
    bias,
    row,
    column,
    split,
    M: tl.constexpr,
    N: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
):
    """One tile from weights that are there; x comes in STEPS steps."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.static_range(STEPS):
        x = x_map.load([row, (split * STEPS + step) * BLOCK_K])
        acc = tl.dot(x, w_tiles[step].T, acc)
    finish(
        acc, out, bias, row, column, split,
        M, N, BLOCK_M, BLOCK_N, ACTIVATION, GATED, False,
    )  # fmt: skip


@triton.jit
def resident_linear(
    x_map,
    w_map,
    out,
    bias,
    length,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUPS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One tile a program; grid (tiles, K ranges of STEPS x BLOCK_K columns, 1).

    The weights of the tile are in shared memory before the wait, and only x is read after it: for
    few rows, where the weights are most of the bytes. w must be complete before any launch.
    Arguments as in `mapped_linear`.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row_tiles = tl.cdiv(M, BLOCK_M)
    split = tl.program_id(1)
    row, column = place(tl.program_id(0), row_tiles, None, M, N, 0, BLOCK_M, BLOCK_N, GROUP_M)
    w_tiles = ()
    for step in tl.static_range(STEPS):
        w_tiles = w_tiles + (w_map.load([column, (split * STEPS + step) * BLOCK_K]),)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if GROUPS > 0:
        if is_needed(row, length, M, GROUPS, BLOCK_M):
            _resident_tile(
                x_map, w_tiles, out, bias, row, column, split,
                M, N, STEPS, BLOCK_M, BLOCK_N, BLOCK_K, ACTIVATION, GATED,
            )  # fmt: skip
    else:
        _resident_tile(
            x_map, w_tiles, out, bias, row, column, split,
            M, N, STEPS, BLOCK_M, BLOCK_N, BLOCK_K, ACTIVATION, GATED,
        )  # fmt: skip


@triton.jit
def summed_linear(
    x,
    w,
    out,
    bias,
    length,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUPS: tl.constexpr,
    INNER_M: tl.constexpr,
    STRIDE_OUTER: tl.constexpr,
    STRIDE_X: tl.constexpr,
    STRIDE_W: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    PDL: tl.constexpr,
):
    """A few rows and columns a program, the threads along K; grid (row tiles, column tiles, 1).

    For narrow results of a long K: no thread multiplies alone through all of K, and K needs few
    steps. Products and sums are float32. With WEIGHTS_FIRST the first step's weights are read
    before the wait: w must be complete before any launch. Other arguments as in `strided_linear`.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * BLOCK_M
    rows = row + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_rows = x + ((rows // INNER_M) * STRIDE_OUTER + (rows % INNER_M) * STRIDE_X)[:, None]
    w_rows = w + (columns * STRIDE_W)[:, None]
    row_inside = (rows < M)[:, None]
    column_inside = (columns < N)[:, None]
    ks = tl.arange(0, BLOCK_K)[None, :]
    if PDL and not WEIGHTS_FIRST:
        tl.extra.cuda.gdc_wait()
    w_tile = tl.load(w_rows + ks, mask=column_inside & (ks < K), other=0.0)
    if PDL and WEIGHTS_FIRST:
        tl.extra.cuda.gdc_wait()
    if GROUPS > 0:
        row_inside = row_inside & is_needed(row, length, M, GROUPS, BLOCK_M)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.static_range((K + BLOCK_K - 1) // BLOCK_K):
        if step > 0:
            ks += BLOCK_K
            w_tile = tl.load(w_rows + ks, mask=column_inside & (ks < K), other=0.0)
        x_tile = tl.load(x_rows + ks, mask=row_inside & (ks < K), other=0.0)
        products = x_tile.to(tl.float32)[:, None, :] * w_tile.to(tl.float32)[None, :, :]
        acc += tl.sum(products, axis=2)
    if bias is not None:
        acc += tl.load(bias + columns, mask=columns < N, other=0.0)[None, :]
    places = out + rows[:, None] * N + columns[None, :]
    value = activate(acc, ACTIVATION).to(out.dtype.element_ty)
    tl.store(places, value, mask=row_inside & (columns < N)[None, :])
