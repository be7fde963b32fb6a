"""Attention and rotary embedding against formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest

from policyc.compiler.ir.attributes import AttentionAttributes, RopeAttributes
from policyc.compiler.ir.errors import TypeMismatch
from policyc.compiler.ir.types import Array
from tests.compiler.ir.ops.run import assert_close, check_types, normal, run

SCALE = 0.3
Q, K, V = normal(2, 3, 4, 6), normal(2, 5, 2, 6), normal(2, 5, 2, 6)
K2, V2 = normal(2, 3, 2, 6), normal(2, 3, 2, 6)
LENGTH = np.array([5, 2], np.int32)


def formula(keys: Array, values: Array, sample: int) -> Array:
    """One sample, a query and head at a time; keys [S, Hk, D]."""
    out = np.zeros(Q.shape[1:])
    for row in range(Q.shape[1]):
        for head in range(Q.shape[2]):
            own = head // 2
            logits = keys[:, own].astype(np.float64) @ Q[sample, row, head] * SCALE
            weights = np.exp(logits - logits.max())
            out[row, head] = weights / weights.sum() @ values[:, own]
    return out


def test_all_keys() -> None:
    got = run("attention", AttentionAttributes(scale=SCALE), Q, K, V)[0]
    for sample in range(2):
        assert_close(got[sample], formula(K[sample], V[sample], sample))


def test_keys_beyond_the_length_do_not_exist() -> None:
    k, v = K.copy(), V.copy()
    k[1, 2:] = 1e30
    v[1, 2:] = 1e30
    attributes = AttentionAttributes(scale=SCALE, length=True)
    got = run("attention", attributes, Q, k, v, LENGTH)[0]
    for sample, length in enumerate(LENGTH):
        assert_close(got[sample], formula(K[sample, :length], V[sample, :length], sample))


def test_a_second_segment_is_seen_whole() -> None:
    attributes = AttentionAttributes(scale=SCALE, length=True, second=True, query_length=True)
    got = run("attention", attributes, Q, K, V, LENGTH, K2, V2, np.array([3, 3], np.int32))[0]
    for sample, length in enumerate(LENGTH):
        keys = np.concatenate([K[sample, :length], K2[sample]])
        values = np.concatenate([V[sample, :length], V2[sample]])
        assert_close(got[sample], formula(keys, values, sample))


def test_a_query_without_keys_gives_zeros() -> None:
    attributes = AttentionAttributes(scale=SCALE, length=True)
    got = run("attention", attributes, Q, K, V, np.zeros(2, np.int32))[0]
    assert np.array_equal(got, np.zeros_like(Q))


@pytest.mark.parametrize("start", [None, (0, 4)])
def test_rope_turns_half_split_pairs(start: tuple[int, ...] | None) -> None:
    x = normal(2, 3, 2, 6)
    angle = np.arange(7)[:, None] * np.array([1.0, 0.5, 0.1])
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    operands = [x, cos, sin] + ([] if start is None else [np.array(start, np.int32)])
    got = run("rope", RopeAttributes(start=start is not None), *operands)[0]
    pairs = x[..., :3].astype(np.float64) + 1j * x[..., 3:]
    for sample in range(2):
        first = 0 if start is None else start[sample]
        turned = pairs[sample] * np.exp(1j * angle[first : first + 3])[:, None, :]
        assert_close(got[sample], np.concatenate([turned.real, turned.imag], axis=-1))


KINDS = ("f32[2,3,4,6]", "f32[2,5,2,6]", "f32[2,5,2,6]")
ROPE = ("f32[2,3,2,6]", "f32[7,3]", "f32[7,3]")


@pytest.mark.parametrize(
    ("op", "attributes", "kinds", "message"),
    [
        ("attention", AttentionAttributes(scale=1.0), KINDS[:2], "2 operands, expected 3"),
        (
            "attention",
            AttentionAttributes(scale=1.0),
            (KINDS[0], "bf16[2,5,2,6]", KINDS[2]),
            "expected one element type",
        ),
        (
            "attention",
            AttentionAttributes(scale=1.0),
            (KINDS[0], "f32[2,5,3,6]", "f32[2,5,3,6]"),
            "do not fit",
        ),
        (
            "attention",
            AttentionAttributes(scale=1.0),
            ("f32[2,3,24]", *KINDS[1:]),
            "expected .B, T",
        ),
        (
            "attention",
            AttentionAttributes(scale=1.0, length=True),
            (*KINDS, "i32[3]"),
            "length is i32.3., expected i32.2.",
        ),
        ("rope", RopeAttributes(), ("f32[2,3,2,5]", *ROPE[1:]), "with even D"),
        ("rope", RopeAttributes(), (ROPE[0], "f32[2,3]", "f32[7,3]"), "with P >= 3"),
        ("rope", RopeAttributes(), (ROPE[0], "f32[7,6]", "f32[7,6]"), "expected .P, 3."),
        ("rope", RopeAttributes(start=True), (*ROPE, "i64[2]"), "start is i64.2., expected i32.2."),
    ],
)
def test_refusals(op: str, attributes: object, kinds: tuple[str, ...], message: str) -> None:
    with pytest.raises(TypeMismatch, match=message):
        check_types(op, attributes, *kinds)
