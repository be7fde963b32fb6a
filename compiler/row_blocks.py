"""Rows of load-stage results, so that a large weight is computed block by block.

Merging, scaling and rounding a weight whole takes several times its size in temporaries, and
fresh memory costs more than the arithmetic; a block's temporaries stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from policyc.compiler.ir.attributes import AxisAttributes, ShapeAttributes
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.types import Array, TensorType

BLOCK_ELEMENTS = 1 << 19
"""Elements of the result that are computed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlocks:
    """Computes values block by block, with the bits of computing them whole.

    Attributes:
        produced: the node that yields a value.
        types: types of values and weights.
        whole: a value or weight as a whole.
        small_bytes: values up to this size are taken whole.
    """

    produced: Mapping[str, Node]
    types: Mapping[str, TensorType]
    whole: Callable[[str], Array]
    small_bytes: int

    def blocks(self, name: str) -> Iterator[Array]:
        """All rows of a value, some at a time, in order and in its declared type."""
        kind = self.types[name]
        if name not in self.produced or kind.size_bytes <= self.small_bytes:
            yield self.whole(name).astype(kind.dtype.numpy, copy=False)
            return
        count = kind.shape[0]
        step = max(1, BLOCK_ELEMENTS * count // kind.element_count)
        for start in range(0, count, step):
            yield self.rows(name, start, min(start + step, count))

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows [start, stop) of a value or weight, in its declared type (a weight: as read)."""
        node, kind = self.produced.get(name), self.types[name]
        if node is None or kind.size_bytes <= self.small_bytes:
            return self.whole(name)[start:stop]
        attributes = node.attrs
        if isinstance(attributes, AxisAttributes) and attributes.axis == 0 and node.op == "concat":
            result = self._joined(node, start, stop)
        elif isinstance(attributes, AxisAttributes) and attributes.axis > 0:
            result = self._computed(node, [self.rows(item, start, stop) for item in node.inputs])
        elif isinstance(attributes, ShapeAttributes) and node.op == "reshape":
            return self._reshaped(node, start, stop)
        elif row_of(node.op).pointwise or node.op == "cast":
            result = self._computed(
                node, [self._broadcast_rows(item, kind, start, stop) for item in node.inputs]
            )
        else:
            return self.whole(name)[start:stop]
        return result.astype(kind.dtype.numpy, copy=False)

    def _computed(self, node: Node, operands: list[Array]) -> Array:
        return row_of(node.op).reference(node.attrs, tuple(operands))[0]

    def _broadcast_rows(self, name: str, result: TensorType, start: int, stop: int) -> Array:
        """The part of a pointwise operand that rows of the result depend on."""
        kind = self.types[name]
        if kind.rank == result.rank and kind.shape[0] == result.shape[0]:
            return self.rows(name, start, stop)
        return self.whole(name)

    def _joined(self, node: Node, start: int, stop: int) -> Array:
        """Rows of operands that stand one below the other."""
        parts, offset = [], 0
        for name in node.inputs:
            count = self.types[name].shape[0]
            first, last = max(start - offset, 0), min(stop - offset, count)
            if first < last:
                parts.append(self.rows(name, first, last))
            offset += count
        return self._computed(node, parts)

    def _reshaped(self, node: Node, start: int, stop: int) -> Array:
        """Rows of a view whose rows are whole fractions of the operand's rows."""
        shape = node.outputs[0].type.shape
        source = self.types[node.inputs[0]]
        if source.rank == 0 or shape[0] % source.shape[0]:
            return self.whole(node.outputs[0].name)[start:stop]
        parts = shape[0] // source.shape[0]
        first, last = start // parts, -(-stop // parts)
        rows = self.rows(node.inputs[0], first, last).reshape(-1, *shape[1:])
        return rows[start - first * parts : stop - first * parts]
