"""Matrix products against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from policyc.compiler.ir.attributes import (
    GatedLinearAttributes,
    LinearAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.errors import TypeMismatch
from policyc.compiler.ir.types import Array
from tests.compiler.ir.ops.run import assert_close, check_types, normal, run

ACT = {"none": lambda x: x, "silu": F.silu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


def wide(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array, np.float64))


@pytest.mark.parametrize("activation", ACT)
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_linear(activation: str, shape: tuple[int, ...]) -> None:
    x, w, b = normal(*shape), normal(7, 5), normal(7)
    attributes = LinearAttributes(activation=activation, bias=True)
    expected = ACT[activation](F.linear(wide(x), wide(w), wide(b))).numpy()
    assert_close(run("linear", attributes, x, w, b)[0], expected)
    plain = run("linear", LinearAttributes(), x, w)[0]
    assert_close(plain, F.linear(wide(x), wide(w)).numpy())


def test_a_length_changes_nothing_in_the_reference() -> None:
    x, w, length = normal(2, 3, 5), normal(7, 5), np.array([1, 3], np.int32)
    plain = run("linear", LinearAttributes(), x, w)[0]
    assert np.array_equal(run("linear", LinearAttributes(length=True), x, w, length)[0], plain)


@pytest.mark.parametrize(("k", "splits"), [(200, 3), (64, 1), (130, 4)])
def test_partial_sums_add_up_and_cover_their_ranges(k: int, splits: int) -> None:
    x, w = normal(3, k), normal(7, k)
    parts = run("split_linear", SplitLinearAttributes(splits=splits), x, w)[0]
    assert parts.shape == (splits, 3, 7)
    assert_close(parts.astype(np.float64).sum(axis=0), (wide(x) @ wide(w).T).numpy(), 1e-5)
    blocks = (k + 63) // 64
    width = (blocks + splits - 1) // splits * 64
    assert_close(parts[0], (wide(x[:, :width]) @ wide(w[:, :width]).T).numpy(), 1e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_linear_takes_rows_in_turn(activation: str) -> None:
    x, gate, up = normal(2, 3, 5), normal(7, 5), normal(7, 5)
    w = np.stack([gate, up], axis=1).reshape(14, 5)
    expected = ACT[activation](wide(x) @ wide(gate).T) * (wide(x) @ wide(up).T)
    got = run("gated_linear", GatedLinearAttributes(activation=activation), x, w)[0]
    assert_close(got, expected.numpy(), 4e-6)


@pytest.mark.parametrize(
    ("op", "attributes", "kinds", "message"),
    [
        ("linear", LinearAttributes(), ("f32[2,4]",), "1 operands, expected 2"),
        (
            "linear",
            LinearAttributes(),
            ("i32[2,4]", "f32[3,4]"),
            "x is i32.2,4., expected floating",
        ),
        ("linear", LinearAttributes(), ("f32[2,4]", "f32[3,5]"), "K differs"),
        ("linear", LinearAttributes(), ("f32[2,4]", "f32[4]"), "expected .N, K."),
        ("linear", LinearAttributes(), ("bf16[2,4]", "f32[3,4]"), "expected one element type"),
        ("linear", LinearAttributes(activation="tanh"), ("f32[4]", "f32[3,4]"), "activation tanh"),
        ("linear", LinearAttributes(bias=True), ("f32[4]", "f32[3,4]", "f32[4]"), "bias is f32.4."),
        (
            "linear",
            LinearAttributes(length=True),
            ("f32[3,4]", "f32[3,4]", "i32[2]"),
            "length is i32.2., expected i32.G. with G dividing 3 rows",
        ),
        ("split_linear", SplitLinearAttributes(splits=0), ("f32[4]", "f32[3,4]"), "splits is 0"),
        (
            "gated_linear",
            GatedLinearAttributes(activation="silu"),
            ("f32[4]", "f32[3,4]"),
            "expected gate and up rows in turn",
        ),
        (
            "gated_linear",
            GatedLinearAttributes(activation="relu"),
            ("f32[4]", "f32[2,4]"),
            "activation relu",
        ),
    ],
)
def test_refusals(op: str, attributes: object, kinds: tuple[str, ...], message: str) -> None:
    with pytest.raises(TypeMismatch, match=message):
        check_types(op, attributes, *kinds)
