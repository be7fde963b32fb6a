"""Host copies of a launch's operands, and its reference result.

Every buffer and weight is a flat array of random values that views index. Random values repeat
after a prime number of elements: no row is a copy of another, and huge tables are made quickly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from policyc.backends.views import Work
from policyc.compiler.ir.attributes import AttentionAttributes, RopeAttributes
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.types import Array, DType
from policyc.kernels.spec import View

_PERIOD = 4_194_301
"""A prime, so that it shares no factor with a row's length."""

_COPY_OP = "copy"
"""The op of `backends.views` that has no row: its result is its operand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOperands:
    """Flat arrays by base (buffer or `@weight`), as large as the views on them need."""

    arrays: Mapping[str, Array]

    def view(self, view: View) -> Array:
        """The elements that a view shows; shares memory with its base."""
        array = self.arrays[view.base][view.offset :]
        strides = tuple(stride * array.itemsize for stride in view.strides)
        return as_strided(array, view.shape, strides, writeable=False)


def extent(view: View) -> int:
    """Elements from the start of the base to the end of the view's last element."""
    last = sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    return view.offset + last + 1


def make_operands(work: Work, seed: int) -> HostOperands:
    """Random floats, full lengths, true masks and ids in range for every operand of a launch."""
    generator = np.random.default_rng(seed)
    sizes: dict[str, int] = {}
    for view in work.operands:
        sizes[view.base] = max(extent(view), sizes.get(view.base, 0))
    arrays: dict[str, Array] = {}
    for index, view in enumerate(work.operands):
        if view.base not in arrays:
            arrays[view.base] = _values(work, index, sizes[view.base], generator)
    return HostOperands(arrays=arrays)


def reference(work: Work, operands: HostOperands) -> tuple[Array, ...]:
    """The results by the op table's reference, in float32 or wider."""
    arrays = tuple(operands.view(view) for view in work.operands)
    return evaluate(work.node, arrays)


def evaluate(node: Node, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """The node's results on arrays."""
    if node.op == _COPY_OP:
        return arrays
    return row_of(node.op).reference(node.attrs, arrays)


def _values(work: Work, index: int, size: int, generator: np.random.Generator) -> Array:
    view = work.operands[index]
    dtype = view.dtype
    if dtype is DType.BOOL:
        return np.ones(size, np.bool_)
    if dtype.is_float:
        # Products of weights with unit-sized rows stay of unit size.
        scale = view.shape[-1] ** -0.5 if view.base.startswith("@") and len(view.shape) > 1 else 1.0
        block = generator.standard_normal(min(size, _PERIOD), np.float32) * np.float32(scale)
        return np.resize(block.astype(dtype.numpy), size)
    rule = _INTEGERS.get(work.node.op, _length)
    return rule(work, index, size, generator).astype(dtype.numpy)


IntegerRule = Callable[[Work, int, int, np.random.Generator], Array]


def _length(work: Work, index: int, size: int, _: np.random.Generator) -> Array:
    """Row counts: every group of the result's rows is needed whole."""
    shape = work.node.outputs[-1].type.shape
    if work.node.op == "split_linear":
        shape = shape[1:]
    return np.full(size, math.prod(shape[:-1]) // math.prod(work.operands[index].shape))


def _ids(work: Work, index: int, size: int, generator: np.random.Generator) -> Array:
    """Rows of the table, and after them row counts."""
    if index:
        return _length(work, index, size, generator)
    return generator.integers(0, work.operands[1].shape[0], size)


def _attention_lengths(work: Work, index: int, size: int, _: np.random.Generator) -> Array:
    """Valid keys of the first segment; the last operand may be a count of queries."""
    attrs = work.node.attrs
    assert isinstance(attrs, AttentionAttributes), work.node.op
    if attrs.length and index == 3:
        return np.full(size, work.operands[1].shape[1])
    batch, rows = work.operands[0].shape[:2]
    return np.full(size, batch * rows // math.prod(work.operands[index].shape))


def _rope_rows(work: Work, index: int, size: int, _: np.random.Generator) -> Array:
    """The last start that the table allows; the last operand may be a row count."""
    attrs = work.node.attrs
    assert isinstance(attrs, RopeAttributes), work.node.op
    batch, rows = work.operands[0].shape[:2]
    if attrs.start and index == 3:
        return np.full(size, work.operands[1].shape[0] - rows)
    return np.full(size, batch * rows // math.prod(work.operands[index].shape))


def _counted(_: Work, __: int, size: int, ___: np.random.Generator) -> Array:
    return np.arange(size) % 100


_INTEGERS: Mapping[str, IntegerRule] = {
    "embedding": _ids,
    "attention": _attention_lengths,
    "rope": _rope_rows,
    "copy": _counted,
    "concat": _counted,
}
"""Integer operands of ops where they are not all row counts."""


def sampled_rows(rows: int, seed: int, every: int = 8) -> Sequence[int]:
    """A random row of each `every`, so that every tile of a kernel is hit."""
    generator = np.random.default_rng(seed)
    starts = range(0, rows, every)
    return [start + int(generator.integers(0, min(every, rows - start))) for start in starts]
