"""The rope kernel: values by the interpreter against the op table, machine code for GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from policyc.compiler.ir.attributes import RopeAttributes
from policyc.compiler.ir.types import DType
from policyc.kernels.rope_spec import RopeFamily
from tests.kernels.cases import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    HOST,
    Case,
    Problem,
    Run,
    TestDevice,
    difference,
    runnable,
)
from tests.kernels.compiling import compile_call

FAMILY = RopeFamily()

# The interpreter cuts bfloat16 off instead of rounding it.
LIMITS = {DType.F32: 1e-6, DType.BF16: 2.0**-7}


def rope_case(
    sizes: tuple[int, int, int, int],
    dtype: DType,
    *,
    start: tuple[int, ...] = (),
    length: tuple[int, ...] = (),
    rows: int = 0,
) -> Case:
    """`sizes` are batch, rows, heads, width; x is a window on a buffer with two more heads."""
    batch, count, heads, width = sizes
    problem = Problem(seed=count + width)
    problem.add(
        problem.normal(sizes, dtype), within=(batch, count, heads + 2, width), at=(0, 0, 1, 0)
    )
    table = (rows or count, width // 2)
    angles = problem.random.uniform(-100, 100, table)
    problem.add(np.cos(angles).astype(np.float32), name="@cos")
    problem.add(np.sin(angles).astype(np.float32), name="@sin")
    if start:
        problem.add(np.array(start, np.int32))
    if length:
        problem.add(np.array(length, np.int32))
    attrs = RopeAttributes(start=bool(start), length=bool(length), dtype=dtype)
    return problem.case("rope", attrs)


@pytest.mark.parametrize(
    ("sizes", "dtype", "start"),
    [
        ((1, 7, 5, 32), DType.F32, ()),
        ((2, 3, 9, 72), DType.F32, (0, 4)),
        ((1, 4, 9, 256), DType.BF16, (13,)),
    ],
)
def test_matches_reference(
    interpreted: Run, sizes: tuple[int, int, int, int], dtype: DType, start: tuple[int, ...]
) -> None:
    case = rope_case(sizes, dtype, start=start, rows=20)
    for parameters in runnable(FAMILY, case, HOST)[::3]:
        found = case.run(FAMILY, parameters, HOST, interpreted)[0]
        distance = difference(found, case.expected[0])
        assert distance.relative <= LIMITS[dtype], f"{parameters}: {distance}"


def test_only_needed_rows_are_written(interpreted: Run) -> None:
    case = rope_case((2, 6, 3, 32), DType.F32, length=(4, 0), rows=8)
    assert "t=<=6" in FAMILY.problem(case.node, case.types).key
    found = case.run(FAMILY, runnable(FAMILY, case, HOST)[0], HOST, interpreted)[0]
    assert difference(found[0, :4], case.expected[0][0, :4]).relative < 1e-6
    assert np.isnan(found[0, 4:]).all() and np.isnan(found[1]).all()


@pytest.mark.parametrize("device", [HOPPER, AMPERE, BLACKWELL])
def test_compiles_without_spills(device: TestDevice) -> None:
    case = rope_case((1, 50, 9, 256), DType.BF16, start=(0,), rows=1018)
    (call,) = case.calls(FAMILY, runnable(FAMILY, case, device)[0], device)
    usage = compile_call(call, device.compute_capability)
    assert usage.local_bytes == 0
    assert ("griddepcontrol.wait" in usage.ptx) == device.has_dependent_launch
