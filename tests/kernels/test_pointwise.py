"""Generated pointwise kernels: values by the interpreter against the op table, and their text."""

from __future__ import annotations

import numpy as np
import pytest

from policyc.compiler.ir.attributes import (
    Instruction,
    NoAttributes,
    PointwiseAttributes,
    ScalarAttributes,
)
from policyc.compiler.ir.types import DType
from policyc.kernels.pointwise_spec import BINARY, SCALAR, UNARY, PointwiseFamily, program_text
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

FAMILY = PointwiseFamily()

# Sums of exp, sin and quotients in float32, a few units in the last place each.
LIMIT = 2e-6


def check(case: Case, run: Run, limit: float = LIMIT) -> None:
    for parameters in runnable(FAMILY, case, HOST)[:2]:
        found = case.run(FAMILY, parameters, HOST, run)
        for array, expected in zip(found, case.expected, strict=True):
            distance = difference(array, expected)
            assert distance.relative <= limit, f"{case.node.op} {parameters}: {distance}"


@pytest.mark.parametrize("op", UNARY)
def test_unary(interpreted: Run, op: str) -> None:
    problem = Problem(seed=len(op))
    x = problem.normal((5, 33), DType.F32, 4.0)
    problem.add(np.abs(x) + np.float32(0.01) if op in ("sqrt", "rsqrt") else x)
    check(problem.case(op, NoAttributes()), interpreted)


def test_tanh_keeps_small_values(interpreted: Run) -> None:
    problem = Problem(seed=1)
    problem.add(np.geomspace(1e-8, 3.0, 200).astype(np.float32) * np.float32(-1))
    case = problem.case("tanh", NoAttributes())
    found = case.run(FAMILY, runnable(FAMILY, case, HOST)[0], HOST, interpreted)[0]
    assert np.abs(found / case.expected[0] - 1).max() < 2e-6


@pytest.mark.parametrize("op", BINARY)
def test_binary_broadcasts(interpreted: Run, op: str) -> None:
    problem = Problem(seed=len(op))
    problem.add(problem.normal((2, 1, 7), DType.BF16))
    problem.add(problem.normal((4, 1), DType.F32) + np.float32(3))
    case = problem.case(op, NoAttributes())
    assert case.node.output.type.shape == (2, 4, 7)
    check(case, interpreted)


@pytest.mark.parametrize("op", SCALAR)
def test_scalar(interpreted: Run, op: str) -> None:
    problem = Problem(seed=len(op))
    problem.add(problem.normal((3, 5), DType.F32), within=(3, 9), at=(0, 2))
    check(problem.case(op, ScalarAttributes(value=-1.7)), interpreted)


def euler_case() -> Case:
    """x + v * step as float32 and as bfloat16, with a weight that is read before the wait."""
    problem = Problem(seed=4)
    problem.add(problem.normal((1, 50, 32), DType.F32))
    problem.add(problem.normal((1, 50, 32), DType.BF16))
    problem.add(problem.normal((32,), DType.F32), name="@step")
    program = (
        Instruction(op="mul", arguments=(1, 2)),
        Instruction(op="add", arguments=(0, 3)),
    )
    return problem.case(
        "pointwise",
        PointwiseAttributes(program=program, results=(4, 3), dtypes=(DType.F32, DType.BF16)),
    )


def test_group_with_two_results(interpreted: Run) -> None:
    check(euler_case(), interpreted, limit=2.0**-7)  # the interpreter cuts bfloat16 off


def test_group_without_instructions_converts(interpreted: Run) -> None:
    problem = Problem(seed=2)
    problem.add(problem.random.integers(-3, 3, (4, 4)).astype(np.int32))
    attrs = PointwiseAttributes(program=(), results=(0,), dtypes=(DType.BOOL,))
    case = problem.case("pointwise", attrs)
    found = case.run(FAMILY, runnable(FAMILY, case, HOST)[0], HOST, interpreted)[0]
    assert np.array_equal(found, case.buffers["%0"].reshape(4, 4) != 0)


def test_text_is_deterministic_and_reads_weights_before_the_wait() -> None:
    case = euler_case()
    attrs = case.node.attrs
    assert isinstance(attrs, PointwiseAttributes)
    name, text = program_text(attrs, (False, False, True))
    assert (name, text) == program_text(attrs, (False, False, True))
    assert name != program_text(attrs, (False, False, False))[0]
    assert text.index("v2 = ") < text.index("gdc_wait") < text.index("v0 = ")


@pytest.mark.parametrize("device", [HOPPER, AMPERE, BLACKWELL])
def test_compiles_without_spills(device: TestDevice) -> None:
    case = euler_case()
    (call,) = case.calls(FAMILY, runnable(FAMILY, case, device)[0], device)
    usage = compile_call(call, device.compute_capability)
    assert usage.local_bytes == 0
    assert ("griddepcontrol.wait" in usage.ptx) == device.has_dependent_launch
