"""What the kernels of the linear family share: tiles and their order, prefetch, epilogue.

With `length`, an int32 a group, the M rows fall into GROUPS groups of equal size, and only the
first `length[group]` rows of each are needed. Row tiles without a needed row are neither read nor
written; the others share the programs as if there were no more.

Dependent launch (PDL): a program first lets its successor start, then touches only weights, then
waits for its predecessor, whose results (x, length) it reads and whose buffers it may overwrite.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    # Both are x / (1 + exp(-u)): nothing cancels for negative x. The reciprocal is the square of
    # a reciprocal root, which takes one instruction and no scaling of large arguments.
    if ACTIVATION == "gelu_tanh":
        # u = 2 sqrt(2/pi) (x + 0.044715 x^3), times -log2(e).
        root = tl.rsqrt(1.0 + tl.exp2(x * (-2.302208198144325 - 0.1029432395800235 * x * x)))
        return x * root * root
    elif ACTIVATION == "silu":
        root = tl.rsqrt(1.0 + tl.exp2(-1.4426950408889634 * x))
        return x * root * root
    else:
        return x


@triton.jit
def needed_rows(length, index, M: tl.constexpr, GROUPS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Row tiles with a needed row: how many there are, and the index-th of them."""
    rows: tl.constexpr = M // GROUPS
    count = 0
    found = 0
    after = 0  # the first tile that no earlier group needed
    for group in tl.static_range(GROUPS):
        needed = tl.minimum(tl.load(length + group), rows)
        first = tl.maximum(after, group * rows // BLOCK_M)
        stop = tl.where(needed > 0, tl.cdiv(group * rows + needed, BLOCK_M), first)
        own = tl.maximum(stop - first, 0)
        is_here = (index >= count) & (index < count + own)
        found = tl.where(is_here, first + index - count, found)
        count += own
        after = tl.maximum(after, first + own)
    return count, found


@triton.jit
def is_needed(row, length, M: tl.constexpr, GROUPS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Does the tile that starts at `row` hold a needed row?"""
    rows: tl.constexpr = M // GROUPS
    first = row // rows
    found = False
    for index in tl.static_range((BLOCK_M + rows - 2) // rows + 1):
        group = first + index
        needed = tl.load(length + group, mask=group < GROUPS, other=0)
        is_in = (needed > 0) & (group * rows < row + BLOCK_M) & (group * rows + needed > row)
        found = found | is_in
    return found


@triton.jit
def place(
    tile,
    row_tiles,
    length,
    M: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """First row and column of the tile-th needed tile.

    GROUP_M of the `row_tiles` needed tiles of rows in turn share a tile of weights.
    """
    group_tiles: tl.constexpr = GROUP_M * tl.cdiv(N, BLOCK_N)
    first = (tile // group_tiles) * GROUP_M
    height = tl.maximum(tl.minimum(row_tiles - first, GROUP_M), 1)
    within = tile % group_tiles
    row_tile = first + within % height
    if GROUPS > 1:
        _, row_tile = needed_rows(length, row_tile, M, GROUPS, BLOCK_M)
    return row_tile * BLOCK_M, (within // height) * BLOCK_N


@triton.jit
def _prefetch(
    w,
    first_row,
    first_k,
    N: tl.constexpr,
    K: tl.constexpr,
    STRIDE_W: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Ask for ROWS x COLUMNS bf16 weights to come to L2.

    CHUNK columns a request (a power of two that divides COLUMNS): 64 are the 128 bytes of a line;
    more are asked for as one bulk copy, which compute capability 9.0 brought.
    """
    rows = tl.minimum(first_row + tl.arange(0, ROWS), N - 1)
    last: tl.constexpr = K - (1 if CHUNK == 64 else CHUNK)
    columns = tl.minimum(first_k + CHUNK * tl.arange(0, COLUMNS // CHUNK), last)
    chunks = w + rows[:, None] * STRIDE_W + columns[None, :]
    if CHUNK == 64:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
            "=r,l",
            [chunks],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
            "=r,l,r",
            [chunks, 2 * CHUNK],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def begin(
    w,
    first_row,
    first_k,
    N: tl.constexpr,
    K: tl.constexpr,
    STRIDE_W: tl.constexpr,
    ROWS: tl.constexpr,
    PREFETCH: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """What a program does before it may read x: start the successor, warm L2 with weights, wait."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    if PREFETCH > 0:
        _prefetch(w, first_row, first_k, N, K, STRIDE_W, ROWS, PREFETCH, CHUNK)
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def finish(
    acc,
    out,
    bias,
    row,
    column,
    split,
    M: tl.constexpr,
    N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    STORE_MAP: tl.constexpr,
):
    """Epilogue of a tile [BLOCK_M, BLOCK_N]: bias, activation, gate, rounding, store."""
    if bias is not None:
        bias_columns = column + tl.arange(0, BLOCK_N)
        acc += tl.load(bias + bias_columns, mask=bias_columns < N, other=0.0)[None, :]
    if GATED:
        gate, up = tl.split(tl.reshape(acc, (BLOCK_M, BLOCK_N // 2, 2)))
        value = activate(gate, ACTIVATION) * up
        width: tl.constexpr = BLOCK_N // 2
        result_columns: tl.constexpr = N // 2
        first = column // 2
    else:
        value = activate(acc, ACTIVATION)
        width: tl.constexpr = BLOCK_N
        result_columns: tl.constexpr = N
        first = column
    if STORE_MAP:
        out.store([row, first], value.to(out.dtype))
    else:
        rows = row + tl.arange(0, BLOCK_M)
        columns = first + tl.arange(0, width)
        places = rows[:, None] * result_columns + columns[None, :]
        inside = (rows < M)[:, None] & (columns < result_columns)[None, :]
        first_place = out + split * (M * result_columns)
        tl.store(first_place + places, value.to(out.dtype.element_ty), mask=inside)
