"""Random problems for kernels: node, operands in poisoned buffers, the op table's own answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from policyc.compiler.ir.graph import Node, Value
from policyc.compiler.ir.ops import infer, row_of
from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.kernels.spec import (
    COUNTERS_PREFIX,
    Device,
    Family,
    KernelCall,
    Parameters,
    View,
)

Run = Callable[[tuple[KernelCall, ...], dict[str, Array]], dict[str, Array]]

UNWRITTEN_BYTE = 0xA5
"""Fill of integer buffers that a kernel has to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestDevice:
    """Device facts for tests."""

    compute_capability: int = 90
    sm_count: int = 132
    shared_bytes_per_block: int = 232448
    has_dependent_launch: bool = False
    has_tensor_maps: bool = True


TestDevice.__test__ = False  # type: ignore[attr-defined]  # not a test class

HOST = TestDevice()
HOPPER = TestDevice(has_dependent_launch=True)
AMPERE = TestDevice(
    compute_capability=86, sm_count=84, shared_bytes_per_block=101376, has_tensor_maps=False
)
BLACKWELL = TestDevice(
    compute_capability=120, sm_count=170, shared_bytes_per_block=101376, has_dependent_launch=True
)


@dataclass(slots=True, kw_only=True)
class Problem:
    """Operands of one node, each a window on a buffer whose other elements are NaN or junk."""

    seed: int
    views: list[View] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    buffers: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    random: np.random.Generator = field(init=False)

    def normal(self, shape: tuple[int, ...], dtype: DType = DType.BF16, size: float = 1.0) -> Array:
        """Normally distributed values, rounded to `dtype`."""
        return (self.random.standard_normal(shape) * size).astype(dtype.numpy)

    def add(
        self,
        array: Array,
        *,
        name: str = "",
        within: tuple[int, ...] | None = None,
        at: tuple[int, ...] | None = None,
    ) -> View:
        """Put an operand into a buffer of shape `within` at index `at`; default: one of its own."""
        name = name or f"%{len(self.views)}"
        buffer = unwritten(within or array.shape, DType.of(array.dtype))
        start = at or (0,) * array.ndim
        window = tuple(slice(a, a + size) for a, size in zip(start, array.shape, strict=True))
        buffer[window] = array
        view = view_of(name, buffer, start, array.shape)
        self.views.append(view)
        self.arrays.append(array)
        self.buffers[name] = buffer.reshape(-1)
        return view

    def add_view(self, view: View, array: Array) -> None:
        """A further operand on a buffer that is already there."""
        self.views.append(view)
        self.arrays.append(array)

    def case(self, op: str, attrs: object) -> Case:
        types = tuple(TensorType(DType.of(a.dtype), a.shape) for a in self.arrays)
        names = tuple(view.base for view in self.views)
        results = infer(Node(op=op, inputs=names, outputs=(), attrs=attrs), types)
        outputs = tuple(Value(name=f"result{i}", type=type_) for i, type_ in enumerate(results))
        node = Node(op=op, inputs=names, outputs=outputs, attrs=attrs)
        wide = tuple(
            a.astype(np.float64) if t.dtype.is_float else a
            for a, t in zip(self.arrays, types, strict=True)
        )
        return Case(
            node=node,
            types=types,
            operands=tuple(self.views),
            buffers=dict(self.buffers),
            expected=tuple(np.asarray(a) for a in row_of(op).reference(attrs, wide)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A node with its operands in place and the values it must compute."""

    node: Node
    types: tuple[TensorType, ...]
    operands: tuple[View, ...]
    buffers: dict[str, Array]
    expected: tuple[Array, ...]

    def results(self) -> tuple[View, ...]:
        return tuple(contiguous_view(v.name, v.type) for v in self.node.outputs)

    def calls(
        self, family: Family, parameters: Parameters, device: Device
    ) -> tuple[KernelCall, ...]:
        scratch_bytes = family.scratch_bytes(self.node, self.types, parameters)
        scratch = contiguous_view("scratch", TensorType(DType.U8, (scratch_bytes,)))
        return family.calls(
            self.node,
            self.operands,
            self.results(),
            scratch if scratch_bytes else None,
            parameters,
            device,
        )

    def all_buffers(self, family: Family, parameters: Parameters) -> dict[str, Array]:
        """Operands, and results and workspace as nobody has written them."""
        buffers = dict(self.buffers)
        for value in self.node.outputs:
            buffers[value.name] = unwritten((value.type.element_count,), value.type.dtype)
        size = family.scratch_bytes(self.node, self.types, parameters)
        # 0xff bytes read as NaN, so that workspace read before it is written shows.
        buffers["scratch"] = np.full(size, 0xFF, np.uint8)
        count = family.counter_bytes(self.node, self.types, parameters) // 4
        buffers[f"{COUNTERS_PREFIX}{self.node.outputs[0].name}"] = np.zeros(count, np.int32)
        return buffers

    def run(self, family: Family, parameters: Parameters, device: Device, run: Run) -> list[Array]:
        """The results as float64 (integers as they are), shaped."""
        buffers = self.all_buffers(family, parameters)
        calls = self.calls(family, parameters, device)
        after = run(tuple(part for call in calls for part in sequential(call)), buffers)
        for name, before in self.buffers.items():
            assert before.tobytes() == after[name].tobytes(), f"operand {name} was overwritten"
        found = []
        for value in self.node.outputs:
            array = after[value.name].reshape(value.type.shape)
            found.append(array.astype(np.float64) if value.type.dtype.is_float else array)
        return found


def sequential(call: KernelCall) -> tuple[KernelCall, ...]:
    """The call in parts that need no program to wait for another, which the interpreter cannot."""
    constants = dict(call.constants)
    if constants.get("PHASE") != "both" or constants["SPLITS"] == 1:
        return (call,)
    return tuple(
        replace(call, constants=tuple({**constants, "PHASE": phase}.items()))
        for phase in ("partial", "combine")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Distance from the reference: worst absolute, the same relative to the largest, cosine."""

    absolute: float
    relative: float
    cosine: float


def difference(found: Array, expected: Array) -> Difference:
    """Distance of two arrays; NaN or infinity anywhere in `found` gives infinity."""
    found, expected = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    if not np.isfinite(found).all():
        return Difference(absolute=np.inf, relative=np.inf, cosine=-1.0)
    absolute = float(np.abs(found - expected).max())
    norms = float(np.linalg.norm(found) * np.linalg.norm(expected))
    cosine = float(found @ expected) / norms if norms else float(absolute == 0)
    top = float(np.abs(expected).max())
    return Difference(absolute=absolute, relative=absolute / (top or 1.0), cosine=cosine)


def runnable(family: Family, case: Case, device: Device) -> tuple[Parameters, ...]:
    """Parameters of the candidates that the device can run, cheapest first."""
    found = family.candidates(case.node, case.types, device)
    accepted = [candidate for candidate in found if not candidate.rejected]
    ordered = sorted(accepted, key=lambda candidate: (candidate.cost, candidate.parameters))
    return tuple(candidate.parameters for candidate in ordered)


def unwritten(shape: tuple[int, ...], dtype: DType) -> Array:
    """A buffer of NaN, or of a conspicuous byte for integers."""
    if dtype.is_float:
        return np.full(shape, np.nan, dtype.numpy)
    count = int(np.prod(shape)) * dtype.size_bytes
    return np.full(count, UNWRITTEN_BYTE, np.uint8).view(dtype.numpy).reshape(shape)


def contiguous_view(name: str, type_: TensorType) -> View:
    strides = np.cumprod((1, *type_.shape[:0:-1]))[::-1]
    return View(
        base=name,
        offset=0,
        dtype=type_.dtype,
        shape=type_.shape,
        strides=tuple(int(s) for s in strides[-len(type_.shape) :]) if type_.shape else (),
    )


def view_of(name: str, buffer: Array, start: tuple[int, ...], shape: tuple[int, ...]) -> View:
    """The window of `buffer` that starts at index `start`."""
    whole = contiguous_view(name, TensorType(DType.of(buffer.dtype), buffer.shape))
    offset = sum(a * stride for a, stride in zip(start, whole.strides, strict=True))
    return replace(whole, offset=int(offset), shape=shape)
