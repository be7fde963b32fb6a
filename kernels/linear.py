"""Matrix products `act(x w^T + bias)`, their gated form, and partial sums over ranges of K.

Three kernels for one problem: `mapped_linear` reads its operands through tensor maps (one tile a
program), `persistent_linear` does the same with a fixed number of programs that walk over the
tiles, and `strided_linear` reads through pointers (any alignment, any compute capability, float32
in IEEE arithmetic).

Shapes and strides are constexprs: a plan holds one machine code a shape, without index arithmetic
or masks that the shape does not need. x is [M, K], w [N, K], both with unit inner stride; the
result is contiguous. With GATED rows 2i and 2i+1 of w are gate and up of result column i, so one
register tile holds both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from policyc.kernels.linear_parts import begin, finish, needed_rows, place


@triton.jit
def _mapped_tile(
    x_map,
    w_map,
    side_map,
    out,
    bias,
    row,
    column,
    split,
    M: tl.constexpr,
    N: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SIDE_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    STORE_MAP: tl.constexpr,
):
    """One tile of BLOCK_M rows and BLOCK_N + SIDE_N columns, over SPLIT_K columns of K.

    Blocks are powers of two; a second, narrower accumulator gives the tile widths between them.
    Reads beyond the operands yield zeros, so the last range of K needs no mask.
    """
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if SIDE_N > 0:
        side = tl.zeros((BLOCK_M, SIDE_N), dtype=tl.float32)
        for step in range(tl.cdiv(SPLIT_K, BLOCK_K)):
            k = split * SPLIT_K + step * BLOCK_K
            x = x_map.load([row, k])
            acc = tl.dot(x, w_map.load([column, k]).T, acc)
            side = tl.dot(x, side_map.load([column + BLOCK_N, k]).T, side)
        finish(
            side, out, bias, row, column + BLOCK_N, split,
            M, N, BLOCK_M, SIDE_N, ACTIVATION, GATED, STORE_MAP,
        )  # fmt: skip
    else:
        for step in range(tl.cdiv(SPLIT_K, BLOCK_K)):
            k = split * SPLIT_K + step * BLOCK_K
            acc = tl.dot(x_map.load([row, k]), w_map.load([column, k]).T, acc)
    finish(
        acc, out, bias, row, column, split,
        M, N, BLOCK_M, BLOCK_N, ACTIVATION, GATED, STORE_MAP,
    )  # fmt: skip


@triton.jit
def mapped_linear(
    x_map,
    w_map,
    side_map,
    out,
    w,
    bias,
    length,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUPS: tl.constexpr,
    STRIDE_W: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SIDE_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    STORE_MAP: tl.constexpr,
    PREFETCH: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One tile a program; grid (tiles, K ranges of SPLIT_K columns, 1).

    Args:
        x_map: tensor map of x [M, K], block [BLOCK_M, BLOCK_K].
        w_map: tensor map of w [N, K], block [BLOCK_N, BLOCK_K].
        side_map: the same with block [SIDE_N, BLOCK_K]; None where SIDE_N is 0.
        out: the result [ranges, M, N] as a pointer, or as a tensor map of tiles (STORE_MAP).
        w: pointer to w for the prefetch; None where PREFETCH is 0.
        bias: pointer to float32 [N], or None.
        length: pointer to int32 [GROUPS], or None where GROUPS is 0.
        PREFETCH: columns of K to ask for before the wait; 0 or a power of two >= 64.
        CHUNK: columns a request, see `_prefetch`.
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    row_tiles = tl.cdiv(M, BLOCK_M)
    # Before the wait no length is known: together, all programs then ask for all weights.
    row, column = place(tile, row_tiles, None, M, N, 0, BLOCK_M, BLOCK_N + SIDE_N, GROUP_M)
    begin(w, column, split * SPLIT_K, N, K, STRIDE_W, BLOCK_N, PREFETCH, CHUNK, PDL)
    if GROUPS == 0:
        _mapped_tile(
            x_map, w_map, side_map, out, bias, row, column, split,
            M, N, SPLIT_K, BLOCK_M, BLOCK_N, SIDE_N, BLOCK_K, ACTIVATION, GATED, STORE_MAP,
        )  # fmt: skip
    else:
        row_tiles, _ = needed_rows(length, 0, M, GROUPS, BLOCK_M)
        if tile < row_tiles * tl.cdiv(N, BLOCK_N + SIDE_N):
            row, column = place(
                tile, row_tiles, length, M, N, GROUPS, BLOCK_M, BLOCK_N + SIDE_N, GROUP_M
            )
            _mapped_tile(
                x_map, w_map, side_map, out, bias, row, column, split,
                M, N, SPLIT_K, BLOCK_M, BLOCK_N, SIDE_N, BLOCK_K, ACTIVATION, GATED, STORE_MAP,
            )  # fmt: skip


@triton.jit
def persistent_linear(
    x_map,
    w_map,
    side_map,
    out,
    bias,
    length,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUPS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SIDE_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    STORE_MAP: tl.constexpr,
    PDL: tl.constexpr,
):
    """PROGRAMS programs walk over all tiles; the next tile's loads run under this one's epilogue.

    Arguments as in `mapped_linear`; grid (PROGRAMS, 1, 1).
    """
    begin(None, 0, 0, N, K, K, BLOCK_N, 0, 0, PDL)
    row_tiles = tl.cdiv(M, BLOCK_M)
    if GROUPS > 0:
        row_tiles, _ = needed_rows(length, 0, M, GROUPS, BLOCK_M)
    tiles = row_tiles * tl.cdiv(N, BLOCK_N + SIDE_N)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        row, column = place(
            tile, row_tiles, length, M, N, GROUPS, BLOCK_M, BLOCK_N + SIDE_N, GROUP_M
        )
        _mapped_tile(
            x_map, w_map, side_map, out, bias, row, column, 0,
            M, N, K, BLOCK_M, BLOCK_N, SIDE_N, BLOCK_K, ACTIVATION, GATED, STORE_MAP,
        )  # fmt: skip


@triton.jit
def _strided_tile(
    x,
    w,
    out,
    bias,
    row,
    column,
    split,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    INNER_M: tl.constexpr,
    STRIDE_OUTER: tl.constexpr,
    STRIDE_X: tl.constexpr,
    STRIDE_W: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
):
    """One tile [BLOCK_M, BLOCK_N] over SPLIT_K columns of K."""
    first_k = split * SPLIT_K
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    row_inside = (rows < M)[:, None]
    column_inside = (columns < N)[:, None]
    x_rows = x + ((rows // INNER_M) * STRIDE_OUTER + (rows % INNER_M) * STRIDE_X)[:, None]
    w_rows = w + (columns * STRIDE_W)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(SPLIT_K, BLOCK_K)):
        ks = first_k + step * BLOCK_K + tl.arange(0, BLOCK_K)
        if SPLIT_K % BLOCK_K == 0 and K % SPLIT_K == 0:
            x_tile = tl.load(x_rows + ks[None, :], mask=row_inside, other=0.0)
            w_tile = tl.load(w_rows + ks[None, :], mask=column_inside, other=0.0)
        else:
            k_inside = (ks < tl.minimum(first_k + SPLIT_K, K))[None, :]
            x_tile = tl.load(x_rows + ks[None, :], mask=row_inside & k_inside, other=0.0)
            w_tile = tl.load(w_rows + ks[None, :], mask=column_inside & k_inside, other=0.0)
        acc = tl.dot(x_tile, w_tile.T, acc, input_precision="ieee")
    finish(
        acc, out, bias, row, column, split,
        M, N, BLOCK_M, BLOCK_N, ACTIVATION, GATED, False,
    )  # fmt: skip


@triton.jit
def strided_linear(
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
    SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    PREFETCH: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One tile a program through pointers; grid (tiles, K ranges of SPLIT_K columns, 1).

    Row r of x starts at element `r // INNER_M * STRIDE_OUTER + r % INNER_M * STRIDE_X`: rows of a
    slice of a batched tensor. x and w have one element type; float32 is multiplied in float32.
    Other arguments as in `mapped_linear`.
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    row_tiles = tl.cdiv(M, BLOCK_M)
    row, column = place(tile, row_tiles, None, M, N, 0, BLOCK_M, BLOCK_N, GROUP_M)
    begin(w, column, split * SPLIT_K, N, K, STRIDE_W, BLOCK_N, PREFETCH, CHUNK, PDL)
    if GROUPS == 0:
        _strided_tile(
            x, w, out, bias, row, column, split,
            M, N, K, INNER_M, STRIDE_OUTER, STRIDE_X, STRIDE_W, SPLIT_K,
            BLOCK_M, BLOCK_N, BLOCK_K, ACTIVATION, GATED,
        )  # fmt: skip
    else:
        row_tiles, _ = needed_rows(length, 0, M, GROUPS, BLOCK_M)
        if tile < row_tiles * tl.cdiv(N, BLOCK_N):
            row, column = place(tile, row_tiles, length, M, N, GROUPS, BLOCK_M, BLOCK_N, GROUP_M)
            _strided_tile(
                x, w, out, bias, row, column, split,
                M, N, K, INNER_M, STRIDE_OUTER, STRIDE_X, STRIDE_W, SPLIT_K,
                BLOCK_M, BLOCK_N, BLOCK_K, ACTIVATION, GATED,
            )  # fmt: skip
