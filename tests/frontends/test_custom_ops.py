"""The eager references of the custom ops agree with the rows of the op table."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import policyc.frontends.custom_ops  # noqa: F401  (registers torch.ops.policyc)
from policyc.compiler.ir.attributes import (
    AttentionAttributes,
    NoAttributes,
    PatchifyAttributes,
    RopeAttributes,
)
from tests.compiler.ir.ops.run import assert_close, normal, run

OPS = torch.ops.policyc
MASK = np.array([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], np.bool_)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


@pytest.mark.parametrize("length", [None, (5, 2), (0, 1)])
@pytest.mark.parametrize("second", [False, True])
def test_attention(length: tuple[int, ...] | None, second: bool) -> None:
    q, k, v = normal(2, 3, 4, 6), normal(2, 5, 2, 6), normal(2, 5, 2, 6)
    lengths = [] if length is None else [np.array(length, np.int32)]
    more = [normal(2, 3, 2, 6), normal(2, 3, 2, 6)] if second else []
    attributes = AttentionAttributes(scale=0.4, length=length is not None, second=second)
    expected = run("attention", attributes, q, k, v, *lengths, *more)[0]
    given = tensors(*lengths) if lengths else [None]
    got = OPS.attention(*tensors(q, k, v), 0.4, *given, *tensors(*more))
    assert_close(got.numpy(), expected)


@pytest.mark.parametrize("start", [None, (0, 4)])
def test_rope(start: tuple[int, ...] | None) -> None:
    x, cos, sin = normal(2, 3, 2, 6), normal(7, 3), normal(7, 3)
    starts = [] if start is None else [np.array(start, np.int32)]
    expected = run("rope", RopeAttributes(start=start is not None), x, cos, sin, *starts)[0]
    assert_close(OPS.rope(*tensors(x, cos, sin, *starts)).numpy(), expected)


@pytest.mark.parametrize("op", ["compact_rows", "scatter_rows"])
def test_rows(op: str) -> None:
    x = normal(3, 5, 2)
    expected = run(op, NoAttributes(), x, MASK)[0]
    assert np.array_equal(getattr(OPS, op)(*tensors(x, MASK)).numpy(), expected)


def test_count_table_row_and_patchify() -> None:
    assert OPS.count_true(*tensors(MASK)).tolist() == [3, 1, 0]
    table, index = normal(4, 2, 3), np.array(2, np.int32)
    assert np.array_equal(OPS.table_row(*tensors(table, index)).numpy(), table[2:3])
    images = normal(1, 2, 3, 4, 6)
    expected = run("patchify", PatchifyAttributes(patch=2, columns=12), images)[0]
    assert np.array_equal(OPS.patchify(*tensors(images), 2).numpy(), expected)


def test_shapes_on_the_meta_device_are_the_real_ones() -> None:
    x, mask = torch.zeros(3, 5, 2), torch.from_numpy(MASK)
    calls = [
        (OPS.compact_rows, (x, mask)),
        (OPS.scatter_rows, (x, mask)),
        (OPS.count_true, (mask,)),
        (OPS.table_row, (x, torch.tensor(1, dtype=torch.int32))),
        (OPS.patchify, (torch.zeros(1, 2, 3, 4, 6), 2)),
        (OPS.rope, (torch.zeros(2, 3, 2, 6), torch.zeros(7, 3), torch.zeros(7, 3))),
        (OPS.attention, (*(torch.zeros(2, 3, 4, 6) for _ in range(3)), 1.0)),
    ]
    for op, arguments in calls:
        real = op(*arguments)
        meta = op(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments))
        assert (meta.shape, meta.dtype) == (real.shape, real.dtype)
