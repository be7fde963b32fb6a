"""Flash attention over one or two key segments, the first with a length that is read on the device.

The query heads of one key/value head are packed into the rows of a tile: row m is head `m % GROUP`
of query `m // GROUP`. A head dimension such as 72 is held as two column blocks (64 + 16), `D_MAIN`
and `D_REST`.

With SPLITS > 1 the key blocks are shared out over programs; `combine_splits` then adds the partial
results.
Key blocks beyond the length are never visited, so the share of each program follows the length.
"""

# A kernel takes one parameter for each pointer, size and stride.
# ruff: noqa: PLR0913

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_columns(pointer, offsets, in_rows, COLUMNS: tl.constexpr, LIMIT: tl.constexpr):
    """A tile [rows, COLUMNS] at row offsets; columns from LIMIT on and rows outside read as 0."""
    columns = tl.arange(0, COLUMNS)[None, :]
    if LIMIT >= COLUMNS:
        return tl.load(pointer + offsets[:, None] + columns, mask=in_rows[:, None], other=0.0)
    else:
        mask = in_rows[:, None] & (columns < LIMIT)
        return tl.load(pointer + offsets[:, None] + columns, mask=mask, other=0.0)


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
    k_main = load_columns(k_pointer, keys * K_STRIDE, exists, D_MAIN, D)
    logits = tl.dot(q_main, tl.trans(k_main), input_precision=PRECISION)
    if D_REST > 0:
        k_rest = load_columns(k_pointer + D_MAIN, keys * K_STRIDE, exists, D_REST, D - D_MAIN)
        logits = tl.dot(q_rest, tl.trans(k_rest), logits, input_precision=PRECISION)
    logits = tl.where(exists[None, :], logits * qk_scale, float("-inf"))
    new_top = tl.maximum(top, tl.max(logits, axis=1))
    weights = tl.exp2(logits - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weights, axis=1)
    weights = weights.to(v_pointer.dtype.element_ty)
    v_main = load_columns(v_pointer, keys * V_STRIDE, exists, D_MAIN, D)
    out_main = tl.dot(weights, v_main, out_main * shrink[:, None], input_precision=PRECISION)
    if D_REST > 0:
        v_rest = load_columns(v_pointer + D_MAIN, keys * V_STRIDE, exists, D_REST, D - D_MAIN)
        out_rest = tl.dot(weights, v_rest, out_rest * shrink[:, None], input_precision=PRECISION)
    return new_top, total, out_main, out_rest


@triton.jit
def attention_tile(
    q_pointer, k_pointer, v_pointer, length_pointer, second_k_pointer, second_v_pointer,
    query_length_pointer, out_pointer, partial_pointer, statistics_pointer, qk_scale,
    T: tl.constexpr, S: tl.constexpr, SECOND_S: tl.constexpr, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, D_MAIN: tl.constexpr, D_REST: tl.constexpr,
    Q_BATCH: tl.constexpr, Q_STRIDE: tl.constexpr, Q_HEAD: tl.constexpr,
    K_BATCH: tl.constexpr, K_STRIDE: tl.constexpr, K_HEAD: tl.constexpr,
    V_BATCH: tl.constexpr, V_STRIDE: tl.constexpr, V_HEAD: tl.constexpr,
    SECOND_K_BATCH: tl.constexpr, SECOND_K_STRIDE: tl.constexpr, SECOND_K_HEAD: tl.constexpr,
    SECOND_V_BATCH: tl.constexpr, SECOND_V_STRIDE: tl.constexpr, SECOND_V_HEAD: tl.constexpr,
    OUT_BATCH: tl.constexpr, OUT_STRIDE: tl.constexpr, OUT_HEAD: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (row blocks, batch * kv heads, splits). `qk_scale` is the softmax scale times log2(e).

    Writes the result, or with SPLITS > 1 the unnormalised float32 output to `partial`
    [splits, batch * kv heads, rows, D] and maximum and sum to `statistics` [2, splits, .., rows].
    """
    batch = tl.program_id(1) // KV_HEADS
    head = tl.program_id(1) % KV_HEADS
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_rows = rows < T * GROUP
    query, query_head = rows // GROUP, head * GROUP + rows % GROUP
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    q_offsets = batch * Q_BATCH + query * Q_STRIDE + query_head * Q_HEAD
    q_main = load_columns(q_pointer, q_offsets, in_rows, D_MAIN, D)
    if D_REST > 0:
        q_rest = load_columns(q_pointer + D_MAIN, q_offsets, in_rows, D_REST, D - D_MAIN)
        out_rest = tl.zeros([BLOCK_M, D_REST], tl.float32)
    else:
        q_rest = q_main
        out_rest = tl.zeros([BLOCK_M, 1], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out_main = tl.zeros([BLOCK_M, D_MAIN], tl.float32)

    limit = S
    if length_pointer is not None:
        limit = tl.minimum(tl.load(length_pointer + batch), S)
    first_blocks = tl.cdiv(limit, BLOCK_N)
    all_blocks = first_blocks + (SECOND_S + BLOCK_N - 1) // BLOCK_N
    begin = tl.program_id(2) * all_blocks // SPLITS
    end = (tl.program_id(2) + 1) * all_blocks // SPLITS
    if query_length_pointer is not None:
        # Nobody needs a tile of padding queries: it visits no key.
        first_query = tl.program_id(0) * BLOCK_M // GROUP
        is_needed = first_query < tl.load(query_length_pointer + batch)
        end = tl.where(is_needed, end, begin)

    k_pointer += batch * K_BATCH + head * K_HEAD
    v_pointer += batch * V_BATCH + head * V_HEAD
    for block in tl.range(begin, tl.minimum(end, first_blocks)):
        top, total, out_main, out_rest = attend(
            q_main, q_rest, top, total, out_main, out_rest,
            k_pointer, v_pointer, block * BLOCK_N, limit, qk_scale,
            K_STRIDE, V_STRIDE, D, D_MAIN, D_REST, BLOCK_N, PRECISION,
        )  # fmt: skip
    if SECOND_S > 0:
        second_k_pointer += batch * SECOND_K_BATCH + head * SECOND_K_HEAD
        second_v_pointer += batch * SECOND_V_BATCH + head * SECOND_V_HEAD
        for block in tl.range(tl.maximum(begin, first_blocks), end):
            top, total, out_main, out_rest = attend(
                q_main, q_rest, top, total, out_main, out_rest,
                second_k_pointer, second_v_pointer, (block - first_blocks) * BLOCK_N, SECOND_S,
                qk_scale, SECOND_K_STRIDE, SECOND_V_STRIDE, D, D_MAIN, D_REST, BLOCK_N, PRECISION,
            )  # fmt: skip

    columns = tl.arange(0, D_MAIN)[None, :]
    if SPLITS > 1:
        row_index = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * (T * GROUP) + rows
        all_rows = SPLITS * tl.num_programs(1) * (T * GROUP)
        tl.store(statistics_pointer + row_index, top, mask=in_rows)
        tl.store(statistics_pointer + all_rows + row_index, total, mask=in_rows)
        if begin < end:
            target = partial_pointer + row_index[:, None] * D
            tl.store(target + columns, out_main, mask=in_rows[:, None] & (columns < D))
            if D_REST > 0:
                rest = D_MAIN + tl.arange(0, D_REST)[None, :]
                tl.store(target + rest, out_rest, mask=in_rows[:, None] & (rest < D))
    else:
        # No key at all leaves the total 0: the result is 0 then, never NaN.
        share = 1.0 / tl.where(total > 0.0, total, 1.0)[:, None]
        offsets = batch * OUT_BATCH + query * OUT_STRIDE + query_head * OUT_HEAD
        target = out_pointer + offsets[:, None]
        out_main = (out_main * share).to(out_pointer.dtype.element_ty)
        tl.store(target + columns, out_main, mask=in_rows[:, None] & (columns < D))
        if D_REST > 0:
            rest = D_MAIN + tl.arange(0, D_REST)[None, :]
            out_rest = (out_rest * share).to(out_pointer.dtype.element_ty)
            tl.store(target + rest, out_rest, mask=in_rows[:, None] & (rest < D))


@triton.jit
def combine_splits(
    partial_pointer, statistics_pointer, out_pointer,
    T: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    OUT_BATCH: tl.constexpr, OUT_STRIDE: tl.constexpr, OUT_HEAD: tl.constexpr,
    SPLITS: tl.constexpr, SPLITS_BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, batch * kv heads): weighted sum of the partial outputs of one row."""
    batch = tl.program_id(1) // KV_HEADS
    head = tl.program_id(1) % KV_HEADS
    row = tl.program_id(0)
    rows_of_split = tl.num_programs(1) * (T * GROUP)
    row_index = tl.program_id(1) * (T * GROUP) + row
    columns = tl.arange(0, BLOCK_D)
    splits = tl.arange(0, SPLITS_BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    at = statistics_pointer + splits * rows_of_split + row_index
    tops = tl.load(at, mask=splits < SPLITS, other=float("-inf"))
    totals = tl.load(at + SPLITS * rows_of_split, mask=splits < SPLITS, other=0.0)
    top = tl.max(tops, axis=0)
    # A split without keys has total 0 and no output; its weight is 0 even if none has keys.
    weights = tl.where(totals > 0.0, tl.exp2(tops - top), 0.0)
    total = tl.sum(weights * totals, axis=0)
    mask = (totals > 0.0)[:, None] & (columns < D)[None, :]
    parts = tl.load(
        partial_pointer + (splits[:, None] * rows_of_split + row_index) * D + columns[None, :],
        mask=mask,
        other=0.0,
    )
    out = tl.sum(parts * weights[:, None], axis=0) / tl.where(total > 0.0, total, 1.0)
    offset = (
        batch * OUT_BATCH + (row // GROUP) * OUT_STRIDE + (head * GROUP + row % GROUP) * OUT_HEAD
    )
    tl.store(out_pointer + offset + columns, out.to(out_pointer.dtype.element_ty), mask=columns < D)
