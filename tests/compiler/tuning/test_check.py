from __future__ import annotations

import numpy as np
import pytest

from policyc.compiler.ir.attributes import LinearAttributes, NoAttributes, SplitLinearAttributes
from policyc.compiler.ir.types import Array, DType
from policyc.compiler.tuning import check
from policyc.compiler.tuning.check import expected_results
from policyc.compiler.tuning.operands import make_operands, reference
from tests.compiler.tuning.cases import F32, value
from tests.compiler.tuning.test_operands import work_of

X, W = value("x", F32, 40, 16), value("@w", F32, 8, 16)


def with_change(array: Array, index: tuple[int, ...], by: float) -> Array:
    changed = array.copy()
    changed[index] += by
    return changed


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("splits", [0, 2])
def test_right_results_pass_and_wrong_ones_do_not(
    sampled: bool, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_LARGE_FLOPS", 0 if sampled else 1e12)
    if splits:
        attrs: object = SplitLinearAttributes(splits=splits)
        work = work_of("split_linear", attrs, (X, W), value("y", F32, splits, 40, 8))
    else:
        work = work_of("linear", LinearAttributes(), (X, W), value("y", F32, 40, 8))
    operands = make_operands(work, 3)
    (right,) = reference(work, operands)
    expected = expected_results(work, operands, 3)
    assert (expected.rows is None) is not sampled
    assert expected.fault([right]) == ""
    rows = range(40) if expected.rows is None else expected.rows
    assert len(rows) == (40 if not sampled else 5)
    wrong = with_change(right, (*[0] * (right.ndim - 2), rows[2], 1), 0.5)
    assert "relative error" in expected.fault([wrong])
    assert "not written" in expected.fault(
        [with_change(right, (-1, rows[-1], -1)[-right.ndim :], np.nan)]
    )


def test_one_wrong_value_of_many_is_found_by_its_size() -> None:
    x, y = value("x", DType.BF16, 2000, 16), value("y", DType.BF16, 2000, 8)
    work = work_of(
        "linear", LinearAttributes(dtype=DType.BF16), (x, value("@w", DType.BF16, 8, 16)), y
    )
    operands = make_operands(work, 3)
    rounded = reference(work, operands)[0].astype(DType.BF16.numpy)
    expected = expected_results(work, operands, 3)
    assert expected.fault([rounded]) == ""
    fault = expected.fault([with_change(rounded, (7, 3), 1.0)])
    assert "largest error" in fault and "allowed 0.02" in fault


def test_integers_must_be_equal() -> None:
    mask, count = value("m", DType.BOOL, 2, 9), value("c", DType.I32, 2)
    work = work_of("count_true", NoAttributes(), (mask,), count)
    expected = expected_results(work, make_operands(work, 1), 1)
    assert expected.fault([np.array([9, 9], np.int32)]) == ""
    assert expected.fault([np.array([9, 8], np.int32)]) == "result 0: 1 of 2 values differ"
