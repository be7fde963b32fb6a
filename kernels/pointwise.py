"""Functions that generated pointwise kernels call; float32 in and out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """By exp(-2|x|), which never overflows; near 0, where that cancels, by the odd series."""
    size = tl.abs(x)
    shrunk = tl.exp(-2.0 * size)
    far = (1.0 - shrunk) / (1.0 + shrunk)
    square = x * x
    near = size * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    value = tl.where(size < 0.1, near, far)
    return tl.where(x < 0.0, -value, value)


@triton.jit
def gelu_tanh(x):
    """`0.5 x (1 + tanh(u))` as `x sigmoid(2u)`, u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def reciprocal_root(x):
    return 1.0 / tl.sqrt_rn(x)
