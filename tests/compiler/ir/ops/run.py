"""Runs one op through its row, as the interpreter does, and checks the inferred types."""

from __future__ import annotations

import numpy as np

from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.ops import infer, row_of
from policyc.compiler.ir.types import Array, DType, TensorType

RANDOM = np.random.default_rng(11)


def normal(*shape: int, dtype: type = np.float32) -> Array:
    return RANDOM.standard_normal(shape).astype(dtype)


def types(*kinds: str) -> tuple[TensorType, ...]:
    """`f32[2,3]` -> its type."""
    made = []
    for kind in kinds:
        name, _, sizes = kind.rstrip("]").partition("[")
        made.append(TensorType(DType(name), tuple(int(s) for s in sizes.split(",") if s)))
    return tuple(made)


def check_types(op: str, attributes: object, *kinds: str) -> tuple[str, ...]:
    node = Node(op=op, inputs=tuple("x" for _ in kinds), outputs=(), attrs=attributes)
    return tuple(str(kind) for kind in infer(node, types(*kinds)))


def run(op: str, attributes: object, *operands: Array) -> tuple[Array, ...]:
    """The results of the reference; their shapes must be the inferred ones."""
    kinds = tuple(TensorType(DType.of(array.dtype), array.shape) for array in operands)
    node = Node(op=op, inputs=tuple("x" for _ in operands), outputs=(), attrs=attributes)
    results = row_of(op).reference(attributes, operands)
    inferred = infer(node, kinds)
    assert tuple(r.shape for r in results) == tuple(kind.shape for kind in inferred)
    return results


def assert_close(got: Array, expected: Array, tolerance: float = 2e-6) -> None:
    """Within `tolerance` of the largest expected value (float32 sums over short axes)."""
    limit = tolerance * max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert got.shape == expected.shape
    assert np.abs(got.astype(np.float64) - expected).max(initial=0.0) <= limit
