"""Norm kernels: values by the interpreter against the op table, machine code for GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from policyc.compiler.ir.attributes import AddNormAttributes, NormAttributes
from policyc.compiler.ir.types import DType
from policyc.kernels.norm_spec import NormFamily
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

FAMILY = NormFamily()

# The interpreter cuts bfloat16 off instead of rounding it: up to 2**-7 of a value is lost.
LIMITS = {DType.F32: 1e-6, DType.BF16: 2.0**-7}


def norm_case(
    op: str,
    rows: int,
    width: int,
    dtype: DType,
    *,
    scale: bool,
    shift: bool,
    weight: str = "@",
    result: DType | None = None,
    lengths: tuple[int, ...] = (),
) -> Case:
    """`result` is the element type of the result, by default that of x."""
    problem = Problem(seed=rows * width + scale + 2 * shift)
    problem.add(
        problem.normal((rows, width), dtype, 3.0) + dtype.numpy.type(0.5),
        within=(rows, width + 16),
        at=(0, 16),
    )
    for name, present in (("scale", scale), ("shift", shift)):
        if present:
            problem.add(problem.normal((width,), DType.F32), name=weight + name)
    if lengths:
        problem.add(np.array(lengths, np.int32))
    attrs = NormAttributes(
        eps=1e-6, scale=scale, shift=shift, length=bool(lengths), dtype=result or dtype
    )
    return problem.case(op, attrs)


def add_norm_case(
    shape: tuple[int, int, int],
    attrs: AddNormAttributes,
    *,
    residual_rows: int = 0,
    branch_dtype: DType = DType.F32,
    lengths: tuple[int, ...] = (),
) -> Case:
    """`shape` is batch, rows, width; batches of the branch lie apart."""
    batch, rows, width = shape
    problem = Problem(seed=batch * rows * width + attrs.splits)
    if attrs.splits:
        problem.add(problem.normal((attrs.splits, *shape), DType.F32))
    else:
        problem.add(
            problem.normal(shape, branch_dtype), within=(batch, rows + 3, width), at=(0, 2, 0)
        )
    kept = (residual_rows, width) if residual_rows else shape
    problem.add(problem.normal(kept, attrs.sum_dtype))
    for name in ("bias", "gate", "scale", "shift"):
        if getattr(attrs, name):
            problem.add(problem.normal((1, width), DType.F32), name=f"@{name}")
    if lengths:
        problem.add(np.array(lengths, np.int32))
    return problem.case("add_norm", attrs)


def check(case: Case, run: Run, parameters: tuple[tuple[str, int], ...]) -> None:
    found = case.run(FAMILY, parameters, HOST, run)
    for value, array, expected in zip(case.node.outputs, found, case.expected, strict=True):
        distance = difference(array, expected)
        limit = LIMITS[value.type.dtype]
        assert distance.relative <= limit, f"{value}: {distance}"
        assert distance.cosine >= 1 - 1e-4, f"{value}: {distance}"


@pytest.mark.parametrize(
    ("op", "rows", "width", "dtype", "scale", "shift"),
    [
        ("rms_norm", 5, 64, DType.F32, False, False),
        ("rms_norm", 3, 2048, DType.BF16, False, False),
        ("rms_norm", 7, 96, DType.BF16, True, True),
        ("layer_norm", 9, 144, DType.F32, True, True),
        ("layer_norm", 2, 1152, DType.BF16, True, True),
        ("layer_norm", 1, 77, DType.F32, True, False),
        ("layer_norm", 1, 6000, DType.F32, False, True),
    ],
)
def test_norm_matches_reference(
    interpreted: Run, op: str, rows: int, width: int, dtype: DType, scale: bool, shift: bool
) -> None:
    case = norm_case(op, rows, width, dtype, scale=scale, shift=shift)
    choices = runnable(FAMILY, case, HOST)
    for parameters in {choices[0], choices[-1]}:
        check(case, interpreted, parameters)


def test_vectors_that_are_not_weights_are_read_after_the_wait(interpreted: Run) -> None:
    case = norm_case("rms_norm", 4, 64, DType.F32, scale=True, shift=True, weight="%")
    parameters = runnable(FAMILY, case, HOST)[0]
    (call,) = case.calls(FAMILY, parameters, HOPPER)
    assert dict(call.constants)["VECTORS_EARLY"] is False
    check(case, interpreted, parameters)


@pytest.mark.parametrize(
    ("shape", "attrs", "residual_rows"),
    [
        (
            (1, 10, 64),
            AddNormAttributes(kind="rms", eps=1e-6, splits=3, gate=True, scale=True, shift=True),
            0,
        ),
        (
            (2, 5, 144),
            AddNormAttributes(
                kind="layer",
                eps=1e-6,
                bias=True,
                scale=True,
                shift=True,
                sum_dtype=DType.BF16,
                dtype=DType.BF16,
            ),
            0,
        ),
        ((3, 16, 72), AddNormAttributes(kind="layer", eps=1e-6, bias=True, dtype=DType.BF16), 16),
        (
            (1, 7, 1024),
            AddNormAttributes(
                kind="rms", eps=1e-6, splits=1, sum_dtype=DType.BF16, dtype=DType.BF16
            ),
            0,
        ),
    ],
)
def test_add_norm_matches_reference(
    interpreted: Run, shape: tuple[int, int, int], attrs: AddNormAttributes, residual_rows: int
) -> None:
    case = add_norm_case(shape, attrs, residual_rows=residual_rows)
    choices = runnable(FAMILY, case, HOST)
    for parameters in {choices[0], choices[-1]}:
        check(case, interpreted, parameters)


@pytest.mark.parametrize("op", ["rms_norm", "add_norm"])
def test_only_needed_rows_are_written(interpreted: Run, op: str) -> None:
    """Two groups of 6 rows, of which 4 and 0 are needed; the others keep what was there."""
    problem = Problem(seed=6)
    problem.add(problem.normal((2, 6, 64), DType.F32))
    if op == "add_norm":
        problem.add(problem.normal((2, 6, 64), DType.F32))
        attrs: object = AddNormAttributes(kind="rms", eps=1e-6, scale=True, length=True)
    else:
        attrs = NormAttributes(eps=1e-6, scale=True, length=True)
    problem.add(problem.normal((64,), DType.F32), name="@scale")
    problem.add(np.array([4, 0], np.int32))
    case = problem.case(op, attrs)
    assert "m=<=12 d=64 vectors=1" in FAMILY.problem(case.node, case.types).key
    for parameters in runnable(FAMILY, case, HOST)[:6:5]:
        assert dict(case.calls(FAMILY, parameters, HOST)[0].constants)["VECTORS_EARLY"] is True
        found = case.run(FAMILY, parameters, HOST, interpreted)
        for array, expected in zip(found, case.expected, strict=True):
            assert difference(array[0, :4], expected[0, :4]).relative < 1e-6
            assert np.isnan(array[0, 4:]).all() and np.isnan(array[1]).all()


def test_norm_sees_the_unrounded_sum(interpreted: Run) -> None:
    """A sum rounded to bfloat16 before the norm would be 2**-9 off, the float32 result is not."""
    attrs = AddNormAttributes(kind="rms", eps=1e-6, sum_dtype=DType.BF16, dtype=DType.F32)
    case = add_norm_case((1, 4, 64), attrs)
    found = case.run(FAMILY, runnable(FAMILY, case, HOST)[0], HOST, interpreted)
    assert difference(found[1], case.expected[1]).absolute < 1e-5


def test_rows_too_wide_for_registers_are_rejected_with_a_reason() -> None:
    case = norm_case("rms_norm", 1, 40000, DType.F32, scale=False, shift=False)
    reasons = [c.rejected for c in FAMILY.candidates(case.node, case.types, HOST)]
    assert all("at most 32768" in reason for reason in reasons)


def test_problem_names_what_decides_the_choice() -> None:
    attrs = AddNormAttributes(kind="rms", eps=1e-6, splits=4, gate=True, dtype=DType.BF16)
    case = add_norm_case((1, 50, 1024), attrs)
    problem = FAMILY.problem(case.node, case.types)
    assert problem.key == "add_norm rms splits=4 m=50 d=1024 vectors=1 f32->f32/bf16"


@pytest.mark.parametrize("device", [HOPPER, AMPERE, BLACKWELL])
def test_compiles_without_spills(device: TestDevice) -> None:
    attrs = AddNormAttributes(
        kind="rms",
        eps=1e-6,
        splits=4,
        gate=True,
        scale=True,
        shift=True,
        sum_dtype=DType.BF16,
        dtype=DType.BF16,
    )
    case = add_norm_case((1, 50, 1024), attrs)
    parameters = runnable(FAMILY, case, device)[0]
    (call,) = case.calls(FAMILY, parameters, device)
    usage = compile_call(call, device.compute_capability)
    assert usage.local_bytes == 0
    assert ("griddepcontrol.wait" in usage.ptx) == device.has_dependent_launch
    assert "ld.global.v4" in usage.ptx, "loads are not vectorised"
