"""The plan of a bundle for one compute capability: kernels, and launches per batch bucket.

The records here are the schema: the reader (`plan_reader`) builds them from `plan/<cc>.json`, the
writer builds them itself and stores `plan_text`. Offsets and sizes are bytes, strides are elements,
axes stand outermost first. Source of the argument rules: how Triton 3.6 and 3.9 lay out kernel
parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from policyc.compiler.ir.types import DType

PLAN_FORMAT = 1
ARENA_ALIGNMENT = 256
TENSOR_MAP_BYTES = 128
MAXIMUM_PARAMETER_BYTES = 32764


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A kernel parameter as the cubin declares it."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An entry point of a cubin.

    `shared_bytes` is dynamic shared memory, `cluster` the number of thread blocks of a cluster
    along x (1: none), `pdl` whether the kernel waits for its predecessor itself (programmatic
    dependent launch).
    """

    file: str
    entry: str
    shared_bytes: int
    block_threads: int
    cluster: int
    pdl: bool
    params: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A contiguous tensor in an arena."""

    arena: str
    offset: int
    dtype: DType
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        size = self.dtype.size_bytes
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferArgument:
    """A pointer into an arena."""

    arena: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightArgument:
    """A pointer into a weight; `weight` is its name in the manifest's index, without `@`."""

    weight: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerArgument:
    """A signed 32-bit integer."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatArgument:
    """A 32-bit float."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NullArgument:
    """A null pointer; every Triton kernel ends with two of them (its scratch pointers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorArgument:
    """A tensor map by value (128 bytes), then shape (i32 x rank), then strides (i64 x rank).

    `swizzle`, `element_type` and `box` are those of Triton's `tensordesc_meta`.
    """

    base: BufferArgument | WeightArgument
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    element_type: int

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def extent_bytes(self) -> int:
        """Bytes from the base to the end of the last element."""
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.dtype.size_bytes


Argument = (
    BufferArgument
    | WeightArgument
    | IntegerArgument
    | FloatArgument
    | NullArgument
    | DescriptorArgument
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch. `grid` counts thread blocks; x is a multiple of the kernel's cluster."""

    kernel: str
    grid: tuple[int, int, int]
    args: tuple[Argument, ...]
    node: str
    stage: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Everything for one batch size. `arenas`: name -> bytes; launches run in order on one stream.

    Buckets share the memory of arenas of one name. The arena `counters` is zero at load and
    otherwise left to the launches; the others hold nothing from one run to the next.

    `values` are the buffers that can be read back: graph outputs, and what the report stage reads.
    """

    arenas: Mapping[str, int]
    inputs: Mapping[str, Buffer]
    values: Mapping[str, Buffer]
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Launch plan of one compute capability (90 for 9.0), buckets by batch size."""

    compute_capability: int
    kernels: Mapping[str, Kernel]
    buckets: Mapping[int, Bucket]
    format: int = PLAN_FORMAT


def parameter_sizes(argument: Argument) -> tuple[int, ...]:
    """Sizes of the kernel parameters that an argument becomes, in order."""
    match argument:
        case IntegerArgument() | FloatArgument():
            return (4,)
        case DescriptorArgument():
            return (TENSOR_MAP_BYTES, *[4] * argument.rank, *[8] * argument.rank)
        case _:
            return (8,)


def plan_text(plan: Plan) -> str:
    """The text of `plan/<cc>.json`; equal plans give equal bytes."""
    value = {
        "format": plan.format,
        "compute_capability": plan.compute_capability,
        "kernels": {name: _kernel_json(kernel) for name, kernel in plan.kernels.items()},
        "buckets": {str(batch): _bucket_json(bucket) for batch, bucket in plan.buckets.items()},
    }
    return json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n"


def _kernel_json(kernel: Kernel) -> dict[str, object]:
    return {
        "file": kernel.file,
        "entry": kernel.entry,
        "shared_bytes": kernel.shared_bytes,
        "block_threads": kernel.block_threads,
        "cluster": kernel.cluster,
        "pdl": kernel.pdl,
        "params": [{"offset": item.offset, "size": item.size} for item in kernel.params],
    }


def _bucket_json(bucket: Bucket) -> dict[str, object]:
    return {
        "arenas": dict(bucket.arenas),
        "inputs": {name: _buffer_json(buffer) for name, buffer in bucket.inputs.items()},
        "values": {name: _buffer_json(buffer) for name, buffer in bucket.values.items()},
        "launches": [_launch_json(launch) for launch in bucket.launches],
    }


def _buffer_json(buffer: Buffer) -> dict[str, object]:
    return {
        "arena": buffer.arena,
        "offset": buffer.offset,
        "dtype": buffer.dtype.value,
        "shape": list(buffer.shape),
    }


def _launch_json(launch: Launch) -> dict[str, object]:
    return {
        "kernel": launch.kernel,
        "grid": list(launch.grid),
        "args": [_argument_json(argument) for argument in launch.args],
        "node": launch.node,
        "stage": launch.stage,
        "origin": launch.origin,
    }


def _argument_json(argument: Argument) -> dict[str, object]:
    match argument:
        case BufferArgument():
            return {"buffer": {"arena": argument.arena, "offset": argument.offset}}
        case WeightArgument():
            return {"weight": argument.weight, "offset": argument.offset}
        case IntegerArgument():
            return {"i32": argument.value}
        case FloatArgument():
            return {"f32": argument.value}
        case NullArgument():
            return {"null": True}
        case DescriptorArgument():
            return {"descriptor": _descriptor_json(argument)}


def _descriptor_json(argument: DescriptorArgument) -> dict[str, object]:
    return {
        "base": _argument_json(argument.base),
        "dtype": argument.dtype.value,
        "shape": list(argument.shape),
        "strides": list(argument.strides),
        "box": list(argument.box),
        "swizzle": argument.swizzle,
        "element_type": argument.element_type,
    }
