"""Pointwise ops against torch in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from policyc.compiler.ir.attributes import (
    CastAttributes,
    Instruction,
    NoAttributes,
    PointwiseAttributes,
    ScalarAttributes,
)
from policyc.compiler.ir.errors import TypeMismatch
from policyc.compiler.ir.types import DType
from tests.compiler.ir.ops.run import assert_close, check_types, normal, run

UNARY = {
    "neg": torch.neg,
    "exp": torch.exp,
    "sin": torch.sin,
    "cos": torch.cos,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
SCALAR = {
    "add_scalar": lambda x: x + 0.7,
    "mul_scalar": lambda x: x * 0.7,
    "div_scalar": lambda x: x / 0.7,
    "rsub_scalar": lambda x: 0.7 - x,
}


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str) -> None:
    x = normal(3, 7)
    x = np.abs(x) + np.float32(0.1) if "sqrt" in op else x
    expected = UNARY[op](torch.from_numpy(x).double()).numpy()
    assert_close(run(op, NoAttributes(), x)[0], expected)
    wide = run(op, NoAttributes(), x.astype(np.float64))[0]
    assert_close(wide, expected, 1e-14)


@pytest.mark.parametrize("op", BINARY)
def test_binary_broadcasts(op: str) -> None:
    a, b = normal(2, 1, 5), normal(3, 1) + np.float32(4)
    expected = BINARY[op](torch.from_numpy(a).double(), torch.from_numpy(b).double()).numpy()
    assert_close(run(op, NoAttributes(), a, b)[0], expected)


@pytest.mark.parametrize("op", SCALAR)
def test_scalar(op: str) -> None:
    x = normal(5)
    expected = SCALAR[op](x.astype(np.float64))
    assert_close(run(op, ScalarAttributes(value=0.7), x)[0], expected)


def test_silu_of_large_negative_numbers_is_zero() -> None:
    with np.errstate(over="ignore"):
        assert run("silu", NoAttributes(), np.float32([-1e4, 1e4]))[0].tolist() == [0.0, 1e4]


def test_cast_rounds_to_nearest_even() -> None:
    x = np.float32([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)])
    got = run("cast", CastAttributes(dtype=DType.BF16), x)[0]
    assert got.dtype == ml_dtypes.bfloat16
    assert got.astype(np.float32).tolist() == [1.0, 1 + 2**-6, -1.0]


def test_a_group_is_its_instructions() -> None:
    program = (
        Instruction(op="mul", arguments=(0, 1)),
        Instruction(op="silu", arguments=(2,)),
        Instruction(op="add_scalar", arguments=(3,), value=-2.0),
    )
    attributes = PointwiseAttributes(program=program, results=(4, 2, 1), dtypes=(DType.F32,) * 3)
    x, y = normal(3, 5), normal(5)
    total, product, operand = run("pointwise", attributes, x, y)
    wide = x.astype(np.float64) * y
    assert_close(product, wide)
    assert_close(total, wide / (1 + np.exp(-wide)) - 2.0)
    assert np.array_equal(operand, np.broadcast_to(y, (3, 5)))


def group(program: tuple[Instruction, ...], results: tuple[int, ...] = (0,)) -> PointwiseAttributes:
    return PointwiseAttributes(program=program, results=results, dtypes=(DType.F32,))


@pytest.mark.parametrize(
    ("op", "attributes", "kinds", "message"),
    [
        ("silu", NoAttributes(), ("f32[2]", "f32[2]"), "2 operands, expected 1"),
        ("silu", NoAttributes(), ("i32[2]",), r"operand is i32\[2\], expected floating point"),
        ("add", NoAttributes(), ("f32[2]", "f32[3]"), "shapes do not broadcast"),
        ("add", NoAttributes(), ("f32[2]", "bool[2]"), "expected floating point"),
        ("mul_scalar", ScalarAttributes(value=1), ("i32[2]",), "expected floating point"),
        ("pointwise", group((Instruction(op="erf", arguments=(0,)),)), ("f32[2]",), "erf is not a"),
        ("pointwise", group((Instruction(op="add", arguments=(0,)),)), ("f32[2]",), "add takes 2"),
        ("pointwise", group((Instruction(op="neg", arguments=(1,)),)), ("f32[2]",), "not defined"),
        ("pointwise", group((), (1,)), ("f32[2]",), "result not defined"),
        ("pointwise", group((), (0, 0)), ("f32[2]",), "one dtype a result"),
    ],
)  # fmt: skip
def test_refusals(op: str, attributes: object, kinds: tuple[str, ...], message: str) -> None:
    with pytest.raises(TypeMismatch, match=message):
        check_types(op, attributes, *kinds)


def test_element_types_are_promoted() -> None:
    assert check_types("add", NoAttributes(), "bf16[2]", "f32[2]") == ("f32[2]",)
    assert check_types("add", NoAttributes(), "bf16[2]", "f64[1]") == ("f64[2]",)
