"""Norms against formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest

from policyc.compiler.ir.attributes import AddNormAttributes, NormAttributes
from policyc.compiler.ir.errors import TypeMismatch
from policyc.compiler.ir.types import Array
from tests.compiler.ir.ops.run import assert_close, check_types, normal, run

EPS = 1e-3
"""Large, so that leaving it out or moving it shows."""


def formula(kind: str, x: Array) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True) if kind == "layer" else wide
    result: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
    return result


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("vector", [(7,), (1, 7)])
def test_norms(kind: str, vector: tuple[int, ...]) -> None:
    x, s, t = normal(2, 3, 7) * np.float32(0.1), normal(*vector), normal(*vector)
    op = f"{kind}_norm"
    assert_close(run(op, NormAttributes(eps=EPS), x)[0], formula(kind, x))
    both = NormAttributes(eps=EPS, scale=True, shift=True)
    assert_close(run(op, both, x, s, t)[0], formula(kind, x) * s + t)
    assert_close(run(op, NormAttributes(eps=EPS, shift=True), x, t)[0], formula(kind, x) + t)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("splits", [0, 3])
@pytest.mark.parametrize("residual", [(2, 3, 7), (3, 7)])
def test_add_norm(kind: str, splits: int, residual: tuple[int, ...]) -> None:
    branch = normal(*((splits,) if splits else ()), 2, 3, 7)
    r, bias, gate, scale, shift = normal(*residual), *(normal(7) for _ in range(4))
    attributes = AddNormAttributes(
        kind=kind, eps=EPS, splits=splits, bias=True, gate=True, scale=True, shift=True
    )
    total, normed = run("add_norm", attributes, branch, r, bias, gate, scale, shift)
    wide = branch.astype(np.float64).sum(0) if splits else branch.astype(np.float64)
    expected = r + gate * (wide + bias)
    assert_close(total, expected)
    assert_close(normed, formula(kind, expected) * scale + shift, 4e-6)


@pytest.mark.parametrize(
    ("op", "attributes", "kinds", "message"),
    [
        ("rms_norm", NormAttributes(eps=EPS), ("i32[4]",), "x is i32.4., expected floating"),
        ("rms_norm", NormAttributes(eps=EPS, scale=True), ("f32[4]",), "1 operands, expected 2"),
        (
            "layer_norm",
            NormAttributes(eps=EPS, scale=True),
            ("f32[2,4]", "f32[2,4]"),
            "scale or shift is f32.2,4., expected .4. or .1,4.",
        ),
        (
            "add_norm",
            AddNormAttributes(kind="group", eps=EPS),
            ("f32[4]", "f32[4]"),
            "kind is group",
        ),
        (
            "add_norm",
            AddNormAttributes(kind="rms", eps=EPS, splits=2),
            ("f32[3,2,4]", "f32[2,4]"),
            "branch is f32.3,2,4.: 2 partial sums",
        ),
        (
            "add_norm",
            AddNormAttributes(kind="rms", eps=EPS),
            ("f32[3,4]", "f32[2,4]"),
            "residual is f32.2,4., branch is f32.3,4.",
        ),
        (
            "add_norm",
            AddNormAttributes(kind="rms", eps=EPS, gate=True),
            ("f32[3,4]", "f32[3,4]", "f32[3]"),
            "bias, gate, scale or shift is f32.3.",
        ),
    ],
)
def test_refusals(op: str, attributes: object, kinds: tuple[str, ...], message: str) -> None:
    with pytest.raises(TypeMismatch, match=message):
        check_types(op, attributes, *kinds)
