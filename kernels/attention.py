"""Flash attention over one or two key segments, the first with a length that is read on the device.

The query heads of one key/value head are packed into the rows of a tile: row m is head `m % GROUP`
of query `m // GROUP`. A head dimension such as 72 is held as two column blocks (64 + 16), `D_MAIN`
and `D_REST`.

With SPLITS > 1 the keys of a tile are shared out over programs. Each writes its partial result,
waits for the others of its tile, and then adds up the partial results of its share of the rows.
"""

# A kernel takes one parameter for each pointer, size and stride.
# ruff: noqa: PLR0913

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_columns(rows, in_rows, COLUMNS: tl.constexpr, LIMIT: tl.constexpr):
    """A tile [rows, COLUMNS] at row pointers; columns from LIMIT on and rows outside read as 0."""
    columns = tl.arange(0, COLUMNS)[None, :]
    mask = in_rows[:, None]
    if LIMIT < COLUMNS:
        mask = mask & (columns < LIMIT)
    return tl.load(rows[:, None] + columns, mask=mask, other=0.0)


@triton.jit
def store_columns(rows, in_rows, tile, COLUMNS: tl.constexpr, LIMIT: tl.constexpr):
    """Write a tile [rows, COLUMNS] at row pointers, but columns from LIMIT on."""
    columns = tl.arange(0, COLUMNS)[None, :]
    mask = in_rows[:, None]
    if LIMIT < COLUMNS:
        mask = mask & (columns < LIMIT)
    tl.store(rows[:, None] + columns, tile.to(rows.dtype.element_ty), mask=mask)


@triton.jit
def attend(
    q_main, q_rest, top, total, out_main, out_rest,
    k_pointer, v_pointer, first_key, limit, qk_scale,
    K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, D: tl.constexpr,
    D_MAIN: tl.constexpr, D_REST: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold a block of keys into the running maximum, sum and output; a key must be below limit."""
    keys = first_key + tl.arange(0, BLOCK_N)
    exists = keys < limit
    k_rows, v_rows = k_pointer + keys * K_STRIDE, v_pointer + keys * V_STRIDE
    k_main = load_columns(k_rows, exists, D_MAIN, D)
    logits = tl.dot(q_main, tl.trans(k_main), input_precision=PRECISION)
    if D_REST > 0:
        k_rest = load_columns(k_rows + D_MAIN, exists, D_REST, D - D_MAIN)
        logits = tl.dot(q_rest, tl.trans(k_rest), logits, input_precision=PRECISION)
    logits = tl.where(exists[None, :], logits * qk_scale, float("-inf"))
    new_top = tl.maximum(top, tl.max(logits, axis=1))
    weights = tl.exp2(logits - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weights, axis=1)
    weights = weights.to(v_pointer.dtype.element_ty)
    v_main = load_columns(v_rows, exists, D_MAIN, D)
    out_main = tl.dot(weights, v_main, out_main * shrink[:, None], input_precision=PRECISION)
    if D_REST > 0:
        v_rest = load_columns(v_rows + D_MAIN, exists, D_REST, D - D_MAIN)
        out_rest = tl.dot(weights, v_rest, out_rest * shrink[:, None], input_precision=PRECISION)
    return new_top, total, out_main, out_rest


@triton.jit
def share_of_blocks(
    first_blocks, query_length_pointer, batch,
    SECOND_BLOCKS: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The key blocks [begin, end) of this program; none for a tile of padding, which nobody needs.

    Blocks beyond the length are never visited, so the share of each program follows the length.
    """
    all_blocks = first_blocks + SECOND_BLOCKS
    begin = tl.program_id(2) * all_blocks // SPLITS
    end = (tl.program_id(2) + 1) * all_blocks // SPLITS
    if query_length_pointer is not None:
        first_query = tl.program_id(0) * BLOCK_M // GROUP
        end = tl.where(first_query < tl.load(query_length_pointer + batch), end, begin)
    return begin, end


@triton.jit
def await_splits(counter_pointer, SPLITS: tl.constexpr):
    """Wait until the SPLITS programs of a tile are here; what they stored before can then be read.

    All of them must be resident at once. Each adds 1 but the first, which adds what is missing to
    2**31: the sign changes when all have come, and nothing else is left of them. So it does not
    matter who counted here before, or how many they were.
    """
    tl.debug_barrier()  # every thread has stored its part
    step = tl.where(tl.program_id(2) == 0, 2147483649 - SPLITS, 1).to(tl.int32)
    before = tl.atomic_add(counter_pointer, step, sem="acq_rel", scope="gpu")
    now = before + step
    while (now ^ before) >= 0:
        now = tl.atomic_add(counter_pointer, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()  # no thread reads before


@triton.jit
def combine_splits(
    partial_pointer, statistics_pointer, out_rows, row_index, in_rows, split_rows,
    D: tl.constexpr, D_BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Average of the partial results of some rows, weighted by 2**statistics; past the L1 cache."""
    # A tuple keeps the statistics in registers: all loads below are independent of one another.
    sizes = ()
    top = tl.full(row_index.shape, float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        at = statistics_pointer + split * split_rows + row_index
        size = tl.load(at, mask=in_rows, other=float("-inf"), cache_modifier=".cg")
        top = tl.maximum(top, size)
        sizes = sizes + (size,)  # noqa: RUF005  # Triton has no unpacking
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros(row_index.shape, tl.float32)
    out = tl.zeros([row_index.shape[0], D_BLOCK], tl.float32)
    columns = tl.arange(0, D_BLOCK)[None, :]
    mask = in_rows[:, None] & (columns < D)
    for split in tl.static_range(SPLITS):
        rows = partial_pointer + (split * split_rows + row_index) * D
        part = tl.load(rows[:, None] + columns, mask=mask, other=0.0, cache_modifier=".cg")
        weight = tl.exp2(sizes[split] - base)
        total += weight
        out += part * weight[:, None]
    out = out / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out_rows[:, None] + columns, out.to(out_rows.dtype.element_ty), mask=mask)


@triton.jit
def combine_tile(
    partial_pointer, statistics_pointer, out_pointer,
    ROWS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, D_BLOCK: tl.constexpr,
    OUT_STRIDE: tl.constexpr, OUT_HEAD: tl.constexpr,
    SPLITS: tl.constexpr, COMBINED_ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Combine this program's share of the tile's rows."""
    within = tl.program_id(2) * COMBINED_ROWS + tl.arange(0, COMBINED_ROWS)
    rows = tl.program_id(0) * BLOCK_M + within
    in_rows = (within < BLOCK_M) & (rows < ROWS)
    out_rows = out_pointer + (rows // GROUP) * OUT_STRIDE + (rows % GROUP) * OUT_HEAD
    combine_splits(
        partial_pointer, statistics_pointer, out_rows, tl.program_id(1) * ROWS + rows, in_rows,
        tl.num_programs(1) * ROWS, D, D_BLOCK, SPLITS,
    )  # fmt: skip


@triton.jit
def attend_all(
    q_rows, in_rows, k_pointer, v_pointer, second_k_pointer, second_v_pointer,
    begin, end, limit, qk_scale,
    D: tl.constexpr, D_MAIN: tl.constexpr, D_REST: tl.constexpr, SECOND_S: tl.constexpr,
    K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr,
    SECOND_K_STRIDE: tl.constexpr, SECOND_V_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Running maximum, sum and unnormalised output of a tile over the key blocks [begin, end)."""
    q_main = load_columns(q_rows, in_rows, D_MAIN, D)
    if D_REST > 0:
        q_rest = load_columns(q_rows + D_MAIN, in_rows, D_REST, D - D_MAIN)
        out_rest = tl.zeros([BLOCK_M, D_REST], tl.float32)
    else:
        q_rest = q_main
        out_rest = tl.zeros([BLOCK_M, 1], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out_main = tl.zeros([BLOCK_M, D_MAIN], tl.float32)
    first_blocks = tl.cdiv(limit, BLOCK_N)
    for block in tl.range(begin, tl.minimum(end, first_blocks)):
        top, total, out_main, out_rest = attend(
            q_main, q_rest, top, total, out_main, out_rest,
            k_pointer, v_pointer, block * BLOCK_N, limit, qk_scale,
            K_STRIDE, V_STRIDE, D, D_MAIN, D_REST, BLOCK_N, PRECISION,
        )  # fmt: skip
    if SECOND_S > 0:
        for block in tl.range(tl.maximum(begin, first_blocks), end):
            top, total, out_main, out_rest = attend(
                q_main, q_rest, top, total, out_main, out_rest,
                second_k_pointer, second_v_pointer, (block - first_blocks) * BLOCK_N, SECOND_S,
                qk_scale, SECOND_K_STRIDE, SECOND_V_STRIDE, D, D_MAIN, D_REST, BLOCK_N, PRECISION,
            )  # fmt: skip
    return top, total, out_main, out_rest


@triton.jit
def store_partial(
    partial_pointer, statistics_pointer, rows, in_rows, top, total, out_main, out_rest,
    ROWS: tl.constexpr, D: tl.constexpr, D_MAIN: tl.constexpr, D_REST: tl.constexpr,
):  # fmt: skip
    """The result of one split, and its weight as a logarithm to base 2 (-inf without any key)."""
    row = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * ROWS + rows
    weight = tl.where(total > 0.0, top + tl.log2(total), float("-inf"))
    tl.store(statistics_pointer + row, weight, mask=in_rows)
    target = partial_pointer + row * D
    store_columns(target, in_rows, out_main, D_MAIN, D)
    if D_REST > 0:
        store_columns(target + D_MAIN, in_rows, out_rest, D_REST, D - D_MAIN)


@triton.jit
def attention_tile(
    q_pointer, k_pointer, v_pointer, length_pointer, second_k_pointer, second_v_pointer,
    query_length_pointer, out_pointer, partial_pointer, statistics_pointer, counter_pointer,
    qk_scale,
    T: tl.constexpr, S: tl.constexpr, SECOND_S: tl.constexpr, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, D_MAIN: tl.constexpr, D_REST: tl.constexpr,
    Q_BATCH: tl.constexpr, Q_STRIDE: tl.constexpr, Q_HEAD: tl.constexpr,
    K_BATCH: tl.constexpr, K_STRIDE: tl.constexpr, K_HEAD: tl.constexpr,
    V_BATCH: tl.constexpr, V_STRIDE: tl.constexpr, V_HEAD: tl.constexpr,
    SECOND_K_BATCH: tl.constexpr, SECOND_K_STRIDE: tl.constexpr, SECOND_K_HEAD: tl.constexpr,
    SECOND_V_BATCH: tl.constexpr, SECOND_V_STRIDE: tl.constexpr, SECOND_V_HEAD: tl.constexpr,
    OUT_BATCH: tl.constexpr, OUT_STRIDE: tl.constexpr, OUT_HEAD: tl.constexpr,
    SPLITS: tl.constexpr, COMBINED_ROWS: tl.constexpr, D_BLOCK: tl.constexpr, PHASE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (row blocks, batch * kv heads, splits). `qk_scale` is the softmax scale times log2(e).

    With SPLITS > 1, `partial` is [splits, batch * kv heads, rows, D], `statistics` the same without
    D, and the splits of a tile meet at its counter. PHASE is "both", or "partial" or "combine" for
    one half alone, which needs no counter.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    batch = tl.program_id(1) // KV_HEADS
    head = tl.program_id(1) % KV_HEADS
    out_pointer += batch * OUT_BATCH + head * GROUP * OUT_HEAD
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_rows = rows < T * GROUP
    if PHASE != "combine":
        q_pointer += batch * Q_BATCH + head * GROUP * Q_HEAD
        k_pointer += batch * K_BATCH + head * K_HEAD
        v_pointer += batch * V_BATCH + head * V_HEAD
        if SECOND_S > 0:
            second_k_pointer += batch * SECOND_K_BATCH + head * SECOND_K_HEAD
            second_v_pointer += batch * SECOND_V_BATCH + head * SECOND_V_HEAD
        limit = S
        if length_pointer is not None:
            limit = tl.minimum(tl.load(length_pointer + batch), S)
        begin, end = share_of_blocks(
            tl.cdiv(limit, BLOCK_N), query_length_pointer, batch,
            (SECOND_S + BLOCK_N - 1) // BLOCK_N, GROUP, SPLITS, BLOCK_M,
        )  # fmt: skip
        q_rows = q_pointer + (rows // GROUP) * Q_STRIDE + (rows % GROUP) * Q_HEAD
        top, total, out_main, out_rest = attend_all(
            q_rows, in_rows, k_pointer, v_pointer, second_k_pointer, second_v_pointer,
            begin, end, limit, qk_scale, D, D_MAIN, D_REST, SECOND_S, K_STRIDE, V_STRIDE,
            SECOND_K_STRIDE, SECOND_V_STRIDE, BLOCK_M, BLOCK_N, PRECISION,
        )  # fmt: skip
        # No key at all leaves the total 0: the result is 0 then, never NaN.
        share = 1.0 / tl.where(total > 0.0, total, 1.0)[:, None]
        if SPLITS == 1:
            out_rows = out_pointer + (rows // GROUP) * OUT_STRIDE + (rows % GROUP) * OUT_HEAD
            store_columns(out_rows, in_rows, out_main * share, D_MAIN, D)
            if D_REST > 0:
                store_columns(out_rows + D_MAIN, in_rows, out_rest * share, D_REST, D - D_MAIN)
        else:
            store_partial(
                partial_pointer, statistics_pointer, rows, in_rows, top, total,
                out_main * share, out_rest * share, T * GROUP, D, D_MAIN, D_REST,
            )  # fmt: skip
    if PHASE == "both" and SPLITS > 1:
        await_splits(
            counter_pointer + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), SPLITS
        )
    if PHASE != "partial" and SPLITS > 1:
        combine_tile(
            partial_pointer, statistics_pointer, out_pointer, T * GROUP, GROUP, D, D_BLOCK,
            OUT_STRIDE, OUT_HEAD, SPLITS, COMBINED_ROWS, BLOCK_M,
        )  # fmt: skip
