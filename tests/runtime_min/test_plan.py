from __future__ import annotations

import pytest

from policyc.compiler.ir.types import DType
from policyc.runtime_min.plan import (
    Argument,
    Buffer,
    BufferArgument,
    DescriptorArgument,
    FloatArgument,
    IntegerArgument,
    NullArgument,
    WeightArgument,
    parameter_sizes,
    plan_text,
)
from policyc.runtime_min.plan_reader import read_plan
from tests.runtime_min.bundles import plan

DESCRIPTOR = DescriptorArgument(
    base=WeightArgument(weight="w", offset=0),
    dtype=DType.BF16,
    shape=(100, 64),
    strides=(128, 1),
    box=(64, 64),
    swizzle=3,
    element_type=10,
)


@pytest.mark.parametrize(
    ("argument", "sizes"),
    [
        (BufferArgument(arena="a", offset=0), (8,)),
        (WeightArgument(weight="w", offset=0), (8,)),
        (NullArgument(), (8,)),
        (IntegerArgument(value=1), (4,)),
        (FloatArgument(value=1.0), (4,)),
        (DESCRIPTOR, (128, 4, 4, 8, 8)),
    ],
)
def test_parameters_of_an_argument(argument: Argument, sizes: tuple[int, ...]) -> None:
    assert parameter_sizes(argument) == sizes


def test_text_reads_back_equal() -> None:
    assert read_plan(plan_text(plan()).encode(), "plan") == plan()


def test_text_is_deterministic() -> None:
    assert plan_text(plan((2, 1))) == plan_text(plan((1, 2)))
    assert plan_text(plan()).endswith("}\n")


def test_extents() -> None:
    assert DESCRIPTOR.extent_bytes == (99 * 128 + 64) * 2
    assert Buffer(arena="a", offset=0, dtype=DType.F32, shape=(2, 3)).size_bytes == 24
