from __future__ import annotations

import numpy as np
import pytest

from policyc.backends.views import Work, resolve_views
from policyc.compiler.ir.attributes import (
    AttentionAttributes,
    EmbeddingAttributes,
    LinearAttributes,
    NoAttributes,
    RopeAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.graph import Node, Value, is_weight
from policyc.compiler.ir.types import DType
from policyc.compiler.tuning.operands import (
    extent,
    make_operands,
    reference,
    sampled_rows,
)
from policyc.kernels.spec import View
from tests.compiler.tuning.cases import F32, graph_of, value

I32, BF16, BOOL = DType.I32, DType.BF16, DType.BOOL


def work_of(op: str, attrs: object, operands: tuple[Value, ...], result: Value) -> Work:
    node = Node(op=op, inputs=tuple(item.name for item in operands), outputs=(result,), attrs=attrs)
    graph = graph_of(
        node,
        inputs=tuple(item for item in operands if not is_weight(item.name)),
        weights=tuple(item for item in operands if is_weight(item.name)),
    )
    return resolve_views(graph).work[0]


def integers(work: Work, index: int) -> list[int]:
    return [int(v) for v in make_operands(work, 1).view(work.operands[index]).ravel()]


@pytest.mark.parametrize(
    ("op", "attrs", "result"),
    [
        ("linear", LinearAttributes(length=True), value("y", F32, 2, 12, 8)),
        (
            "split_linear",
            SplitLinearAttributes(splits=2, length=True),
            value("y", F32, 2, 2, 12, 8),
        ),
    ],
)
def test_lengths_are_whole_groups(op: str, attrs: object, result: Value) -> None:
    operands = (value("x", F32, 2, 12, 4), value("@w", F32, 8, 4), value("n", I32, 4))
    assert integers(work_of(op, attrs, operands, result), 2) == [6] * 4


def test_attention_sees_all_keys_and_needs_all_queries() -> None:
    q, k, v = (value(n, F32, 2, s, 3, 8) for n, s in (("q", 6), ("k", 10), ("v", 10)))
    attrs = AttentionAttributes(scale=1.0, length=True, query_length=True)
    operands = (q, k, v, value("n", I32, 2), value("m", I32, 2))
    work = work_of("attention", attrs, operands, value("y", F32, 2, 6, 3, 8))
    assert (integers(work, 3), integers(work, 4)) == ([10, 10], [6, 6])


def test_rope_starts_where_the_table_still_suffices() -> None:
    tables = (value("@cos", F32, 20, 4), value("@sin", F32, 20, 4))
    operands = (value("x", F32, 1, 6, 2, 8), *tables, value("s", I32, 1), value("n", I32, 1))
    attrs = RopeAttributes(start=True, length=True)
    work = work_of("rope", attrs, operands, value("y", F32, 1, 6, 2, 8))
    assert (integers(work, 3), integers(work, 4)) == ([14], [6])
    assert np.isfinite(reference(work, make_operands(work, 1))[0]).all()


def test_ids_stay_in_the_table_and_masks_are_true() -> None:
    operands = (value("ids", I32, 1, 50), value("@table", BF16, 7, 4))
    work = work_of("embedding", EmbeddingAttributes(), operands, value("y", F32, 1, 50, 4))
    found = integers(work, 0)
    assert min(found) >= 0 and max(found) == 6
    counted = work_of("count_true", NoAttributes(), (value("m", BOOL, 2, 9),), value("c", I32, 2))
    assert reference(counted, make_operands(counted, 1))[0].tolist() == [9, 9]


def test_operands_are_windows_on_their_base() -> None:
    view = View(base="b", offset=3, dtype=F32, shape=(2, 2), strides=(8, 1))
    assert extent(view) == 3 + 8 + 1 + 1
    work = work_of(
        "linear",
        LinearAttributes(),
        (value("x", BF16, 3, 64), value("@w", BF16, 5, 64)),
        value("y", F32, 3, 5),
    )
    operands = make_operands(work, 1)
    x, w = (operands.view(item).astype(np.float64) for item in work.operands)
    np.testing.assert_allclose(reference(work, operands)[0], x @ w.T, rtol=1e-5, atol=1e-5)
    assert 0.5 < x.std() < 1.5 and w.std() == pytest.approx(1 / 8, rel=0.3)


def test_every_eighth_row_is_sampled() -> None:
    rows = sampled_rows(21, 5)
    assert [row // 8 for row in rows] == [0, 1, 2] and max(rows) < 21
