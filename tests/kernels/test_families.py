"""Every op of the scheduled level has one family."""

from __future__ import annotations

import pytest

from policyc.kernels.families import FAMILIES, NoKernel, family_of

SCHEDULED = (
    *("linear", "split_linear", "gated_linear", "rms_norm", "layer_norm", "add_norm", "rope"),
    *("attention", "embedding", "patchify", "compact_rows", "count_true", "concat", "pointwise"),
    *("cast", "copy", "add", "mul_scalar"),
)


@pytest.mark.parametrize("op", SCHEDULED)
def test_each_op_has_a_family(op: str) -> None:
    assert op in family_of(op).ops


def test_no_op_has_two_families() -> None:
    ops = [op for family in FAMILIES for op in family.ops]
    assert len(ops) == len(set(ops))


def test_unknown_op_lists_the_known_ones() -> None:
    with pytest.raises(NoKernel, match=r"no kernel for op conv; ops with kernels: .*attention"):
        family_of("conv")
