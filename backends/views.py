"""Where each value lies: view ops become offsets and strides; the rest is copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from policyc.backends.errors import LoweringError
from policyc.compiler.ir.attributes import (
    NoAttributes,
    PermuteAttributes,
    RowAttributes,
    ShapeAttributes,
    SliceAttributes,
)
from policyc.compiler.ir.graph import Graph, Node, Value, is_weight
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.sequence import Position, device_sequence, host_reads
from policyc.compiler.ir.types import TensorType
from policyc.kernels.spec import View

READABLE_ALIGNMENT_BYTES = 256
"""A buffer that the host reads starts at a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A node that launches. For a copied view, `node` is the copy that takes its place."""

    position: Position
    node: Node
    operands: tuple[View, ...]
    results: tuple[View, ...]

    @property
    def name(self) -> str:
        return self.position.name

    @property
    def operand_types(self) -> tuple[TensorType, ...]:
        return tuple(TensorType(view.dtype, view.shape) for view in self.operands)

    @property
    def place(self) -> str:
        """Stage, node and origin, for messages."""
        origin = f" (origin {self.node.origin})" if self.node.origin else ""
        return f"stage {self.position.stage.name}, {self.name} {self.node.op}{origin}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The view of every value on the device and of every weight, and what launches.

    `copies` are the results of view ops that own memory: reshapes that strides cannot express, and
    views that the host reads but that are no contiguous, aligned buffer.
    """

    views: Mapping[str, View]
    copies: frozenset[str]
    work: tuple[Work, ...]


def resolve_views(graph: Graph) -> Placement:
    """Express every value of a scheduled graph as a window on the value that owns its memory.

    Raises:
        LoweringError: a view op without a rule.
        VerifyError: the graph has a loop or a load stage.
    """
    views = {weight.name: owned(weight) for weight in graph.weights}
    views.update((item.value.name, owned(item.value)) for item in graph.inputs)
    read_by_host = frozenset(host_reads(graph))
    copies: set[str] = set()
    work: list[Work] = []
    for position in device_sequence(graph):
        node = position.node
        if not row_of(node.op).view:
            views.update((value.name, owned(value)) for value in node.outputs)
            work.append(_launch(position, views))
            continue
        name, source = position.name, views[node.inputs[0]]
        view = window(node, source)
        if view is None or (name in read_by_host and not is_readable(view)):
            copies.add(name)
            work.append(_copy(position, source if view is None else view))
            view = owned(node.output)
        views[name] = view
    return Placement(views=views, copies=frozenset(copies), work=tuple(work))


def owned(value: Value) -> View:
    """The whole of a value that owns its memory."""
    return contiguous(value.name, value.type)


def contiguous(base: str, tensor: TensorType) -> View:
    """A contiguous tensor at the start of `base`."""
    strides = _contiguous_strides(tensor.shape)
    return View(base=base, offset=0, dtype=tensor.dtype, shape=tensor.shape, strides=strides)


def is_readable(view: View) -> bool:
    """Can the host read the view as one aligned piece of an arena?"""
    offset_bytes = view.offset * view.dtype.size_bytes
    aligned = offset_bytes % READABLE_ALIGNMENT_BYTES == 0
    return aligned and view.is_contiguous and not is_weight(view.base)


def window(node: Node, source: View) -> View | None:
    """The result of a view op on `source`, or None if strides cannot express it."""
    match node.attrs:
        case SliceAttributes(axis=axis, start=start):
            offset = source.offset + start * source.strides[axis]
            return replace(source, offset=offset, shape=node.output.type.shape)
        case PermuteAttributes(order=order):
            strides = tuple(source.strides[axis] for axis in order)
            return replace(source, shape=node.output.type.shape, strides=strides)
        case RowAttributes(index=index):
            offset = source.offset + index * source.strides[0]
            return replace(source, offset=offset, shape=node.output.type.shape)
        case ShapeAttributes(shape=shape) if node.op == "expand":
            pairs = zip(source.shape, source.strides, shape, strict=True)
            strides = tuple(stride if size == wide else 0 for size, stride, wide in pairs)
            return replace(source, shape=shape, strides=strides)
        case ShapeAttributes(shape=shape) if node.op == "reshape":
            folded = reshaped_strides(source, shape)
            return None if folded is None else replace(source, shape=shape, strides=folded)
    raise LoweringError(
        f"{node.outputs[0].name}: the view op {node.op} has no rule in backends/views.py. "
        "Add one beside those of slice, permute, row, expand and reshape."
    )


def reshaped_strides(source: View, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that give the elements of `source`, in order, the new shape; None if there are none.

    The axes of the source are merged where one continues the next; every merged run must be divided
    exactly by a run of the new axes.
    """
    runs = _merged_runs(source)
    strides: list[int] = []
    size, stride = runs.pop(0) if runs else (1, 1)
    for axis in shape:
        if size == 1 and axis != 1 and runs:
            size, stride = runs.pop(0)
        if size % axis:
            return None
        size //= axis
        strides.append(stride * size)
    return tuple(strides)


def _merged_runs(view: View) -> list[tuple[int, int]]:
    """(size, innermost stride) of the maximal evenly spaced runs, axes of size 1 left out."""
    runs: list[tuple[int, int]] = []
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return runs


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)


def _launch(position: Position, views: Mapping[str, View]) -> Work:
    node = position.node
    return Work(
        position=position,
        node=node,
        operands=tuple(views[name] for name in node.inputs),
        results=tuple(views[value.name] for value in node.outputs),
    )


def _copy(position: Position, source: View) -> Work:
    """Copy `source` to the memory of the node's result, which has the same elements in order."""
    node = position.node
    result = Value(name=position.name, type=TensorType(source.dtype, source.shape))
    copy = Node(
        op="copy",
        inputs=node.inputs,
        outputs=(result,),
        attrs=NoAttributes(),
        origin=node.origin,
    )
    return Work(position=position, node=copy, operands=(source,), results=(owned(result),))
