"""Strict reader of `plan/<cc>.json`: refuses what it does not know, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from policyc.compiler.ir.types import DType
from policyc.runtime_min.errors import BundleVersionError, PlanError
from policyc.runtime_min.fields import Fields, as_integer, as_text, describe, parse_json
from policyc.runtime_min.plan import (
    ARENA_ALIGNMENT,
    MAXIMUM_PARAMETER_BYTES,
    PLAN_FORMAT,
    Argument,
    Bucket,
    Buffer,
    BufferArgument,
    DescriptorArgument,
    FloatArgument,
    IntegerArgument,
    Kernel,
    Launch,
    NullArgument,
    Parameter,
    Plan,
    WeightArgument,
    parameter_sizes,
)

_LARGEST = 2**62
_LARGEST_GRID = (2**31 - 1, 65535, 65535)
_LARGEST_BLOCK = 1024
_LARGEST_SHARED = 256 * 1024
_LARGEST_CLUSTER = 8
_LARGEST_FLOAT = 3.4028234663852886e38
_ARGUMENT_FORMS = "{buffer}, {weight, offset}, {i32}, {f32}, {null: true}, {descriptor}"

# Codes of `elem_type` in Triton's tensordesc_meta (they differ from the driver's), by our element
# type.
_ELEMENT_TYPES: dict[DType, tuple[int, ...]] = {
    DType.U8: (0,),
    DType.BOOL: (0,),
    DType.I32: (2, 3),
    DType.I64: (4, 5),
    DType.F32: (7, 8),
    DType.F64: (9,),
    DType.BF16: (10,),
}


@dataclass(frozen=True, slots=True)
class _Scope:
    """What the launches of a bucket may refer to."""

    kernels: Mapping[str, Kernel]
    arenas: Mapping[str, int]


def read_plan(data: bytes, where: str) -> Plan:
    """The plan in `data`; `where` is the file's name, for messages.

    Raises:
        BundleVersionError: another plan format.
        PlanError: an unknown or missing key, a value out of range, an offset outside its arena, an
            unknown kernel, or arguments that do not match the kernel's parameters.
    """
    fields = Fields(parse_json(data, where, PlanError), where, PlanError)
    version = fields.integer("format", 0, 2**31)
    if version != PLAN_FORMAT:
        raise BundleVersionError(
            f"{where}: plan format {version}, this runtime reads {PLAN_FORMAT}. "
            "Upgrade policyc on the older side: here, or where the bundle was compiled."
        )
    capability = fields.integer("compute_capability", 10, 999)
    kernels = {
        name: _kernel(Fields(item, f"{where}.kernels.{name}", PlanError))
        for name, item in fields.mapping("kernels").items()
    }
    buckets: dict[int, Bucket] = {}
    for text, item in fields.mapping("buckets").items():
        place = f"{where}.buckets.{text}"
        batch = _batch(text, place)
        buckets[batch] = _bucket(Fields(item, place, PlanError), kernels)
    fields.done()
    if not buckets:
        raise PlanError(f"{where}.buckets: expected at least one batch bucket, got none.")
    return Plan(compute_capability=capability, kernels=kernels, buckets=buckets)


def _batch(text: str, where: str) -> int:
    if not text.isascii() or not text.isdecimal() or text != str(int(text)) or int(text) < 1:
        raise PlanError(f"{where}: a bucket is named by its batch size, a positive integer.")
    return int(text)


def _kernel(fields: Fields) -> Kernel:
    kernel = Kernel(
        file=fields.text("file"),
        entry=fields.text("entry"),
        shared_bytes=fields.integer("shared_bytes", 0, _LARGEST_SHARED),
        block_threads=fields.integer("block_threads", 32, _LARGEST_BLOCK),
        cluster=fields.integer("cluster", 1, _LARGEST_CLUSTER),
        pdl=fields.boolean("pdl"),
        params=_parameters(fields),
    )
    fields.done()
    if kernel.block_threads % 32:
        raise PlanError(
            f"{fields.where}.block_threads: expected a multiple of 32, got {kernel.block_threads}."
        )
    return kernel


def _parameters(fields: Fields) -> tuple[Parameter, ...]:
    parameters: list[Parameter] = []
    end = 0
    for index, item in enumerate(fields.items("params")):
        entry = Fields(item, f"{fields.where}.params[{index}]", PlanError)
        offset = entry.integer("offset", end, MAXIMUM_PARAMETER_BYTES)
        size = entry.integer("size", 1, MAXIMUM_PARAMETER_BYTES - offset)
        entry.done()
        end = offset + size
        parameters.append(Parameter(offset=offset, size=size))
    return tuple(parameters)


def _bucket(fields: Fields, kernels: Mapping[str, Kernel]) -> Bucket:
    arenas = {
        name: as_integer(size, f"{fields.where}.arenas.{name}", (0, _LARGEST), PlanError)
        for name, size in fields.mapping("arenas").items()
    }
    inputs = _buffers(fields, "inputs", arenas)
    values = _buffers(fields, "values", arenas)
    scope = _Scope(kernels, arenas)
    launches = tuple(
        _launch(Fields(item, f"{fields.where}.launches[{index}]", PlanError), scope)
        for index, item in enumerate(fields.items("launches"))
    )
    fields.done()
    if not launches:
        raise PlanError(f"{fields.where}.launches: expected at least one launch, got none.")
    return Bucket(arenas=arenas, inputs=inputs, values=values, launches=launches)


def _buffers(fields: Fields, key: str, arenas: Mapping[str, int]) -> dict[str, Buffer]:
    return {
        name: _buffer(Fields(item, f"{fields.where}.{key}.{name}", PlanError), arenas)
        for name, item in fields.mapping(key).items()
    }


def _buffer(fields: Fields, arenas: Mapping[str, int]) -> Buffer:
    arena = fields.text("arena")
    capacity = _arena_bytes(arena, arenas, fields.where)
    buffer = Buffer(
        arena=arena,
        offset=fields.integer("offset", 0, capacity),
        dtype=_dtype(fields),
        shape=fields.integers("shape", 1, _LARGEST),
    )
    fields.done()
    if buffer.offset % ARENA_ALIGNMENT:
        raise PlanError(
            f"{fields.where}.offset: expected a multiple of {ARENA_ALIGNMENT}, got {buffer.offset}."
        )
    _check_inside(arena, buffer.offset + buffer.size_bytes, arenas, fields.where)
    return buffer


def _arena_bytes(arena: str, arenas: Mapping[str, int], where: str) -> int:
    if arena not in arenas:
        known = ", ".join(sorted(arenas)) or "none"
        raise PlanError(f"{where}: unknown arena '{arena}'; the bucket has {known}.")
    return arenas[arena]


def _check_inside(arena: str, end: int, arenas: Mapping[str, int], where: str) -> None:
    if end > arenas[arena]:
        raise PlanError(
            f"{where}: ends at byte {end} of arena '{arena}', which has {arenas[arena]} bytes."
        )


def _dtype(fields: Fields) -> DType:
    text = fields.text("dtype")
    try:
        return DType(text)
    except ValueError:
        known = ", ".join(member.value for member in DType)
        raise PlanError(f"{fields.where}.dtype: unknown '{text}'; known: {known}.") from None


def _launch(fields: Fields, scope: _Scope) -> Launch:
    name = fields.text("kernel")
    kernel = scope.kernels.get(name)
    if kernel is None:
        known = ", ".join(sorted(scope.kernels)[:8]) or "none"
        raise PlanError(f"{fields.where}.kernel: unknown kernel '{name}'; the plan has {known}.")
    launch = Launch(
        kernel=name,
        grid=_grid(fields, kernel.cluster),
        args=tuple(
            _argument(item, f"{fields.where}.args[{index}]", scope.arenas)
            for index, item in enumerate(fields.items("args"))
        ),
        node=fields.text("node"),
        stage=fields.text("stage"),
        origin=fields.text("origin"),
    )
    fields.done()
    _check_parameters(launch, kernel, fields.where)
    return launch


def _grid(fields: Fields, cluster: int) -> tuple[int, int, int]:
    sizes = fields.integers("grid", 1, _LARGEST_GRID[0])
    if len(sizes) != 3:
        raise PlanError(f"{fields.where}.grid: expected [x, y, z], got {list(sizes)}.")
    x, y, z = sizes
    if y > _LARGEST_GRID[1] or z > _LARGEST_GRID[2]:
        raise PlanError(f"{fields.where}.grid: y and z are at most 65535, got {list(sizes)}.")
    if x % cluster:
        raise PlanError(f"{fields.where}.grid: x = {x} is no multiple of the cluster of {cluster}.")
    return x, y, z


def _check_parameters(launch: Launch, kernel: Kernel, where: str) -> None:
    given = tuple(chain.from_iterable(parameter_sizes(argument) for argument in launch.args))
    declared = tuple(parameter.size for parameter in kernel.params)
    if given != declared:
        raise PlanError(
            f"{where}: arguments of {len(given)} parameters with sizes {list(given)}, but kernel "
            f"'{launch.kernel}' declares {len(declared)} with sizes {list(declared)} (node "
            f"{launch.node}). "
            "The plan and the cubin do not belong together; compile the bundle again."
        )


def _argument(value: object, where: str, arenas: Mapping[str, int]) -> Argument:
    if not isinstance(value, dict):
        raise PlanError(f"{where}: expected one of {_ARGUMENT_FORMS}, got {describe(value)}.")
    keys = value.keys()
    if keys == {"buffer"} or keys == {"weight", "offset"}:
        return _pointer(value, where, arenas)
    if keys == {"i32"}:
        limits = (-(2**31), 2**31 - 1)
        return IntegerArgument(value=as_integer(value["i32"], f"{where}.i32", limits, PlanError))
    if keys == {"f32"}:
        return _float(Fields(value, where, PlanError))
    if keys == {"null"} and value["null"] is True:
        return NullArgument()
    if keys == {"descriptor"}:
        fields = Fields(value["descriptor"], f"{where}.descriptor", PlanError)
        return _descriptor(fields, arenas)
    raise PlanError(f"{where}: expected one of {_ARGUMENT_FORMS}, got keys {sorted(keys)}.")


def _pointer(
    value: dict[str, object], where: str, arenas: Mapping[str, int]
) -> BufferArgument | WeightArgument:
    if "weight" in value:
        return WeightArgument(
            weight=as_text(value["weight"], f"{where}.weight", PlanError),
            offset=as_integer(value["offset"], f"{where}.offset", (0, _LARGEST), PlanError),
        )
    fields = Fields(value["buffer"], f"{where}.buffer", PlanError)
    arena = fields.text("arena")
    capacity = _arena_bytes(arena, arenas, fields.where)
    offset = fields.integer("offset", 0, capacity - 1)
    fields.done()
    return BufferArgument(arena=arena, offset=offset)


def _float(fields: Fields) -> FloatArgument:
    value = fields.number("f32")
    if abs(value) > _LARGEST_FLOAT:
        raise PlanError(f"{fields.where}.f32: {value} does not fit a 32-bit float.")
    return FloatArgument(value=value)


def _descriptor(fields: Fields, arenas: Mapping[str, int]) -> DescriptorArgument:
    base = fields.mapping("base")
    if base.keys() != {"buffer"} and base.keys() != {"weight", "offset"}:
        raise PlanError(f"{fields.where}.base: expected a buffer or a weight, got {sorted(base)}.")
    descriptor = DescriptorArgument(
        base=_pointer(base, f"{fields.where}.base", arenas),
        dtype=_dtype(fields),
        shape=fields.integers("shape", 1, 2**31 - 1),
        strides=fields.integers("strides", 1, 2**40),
        box=fields.integers("box", 1, 256),
        swizzle=fields.integer("swizzle", 0, 3),
        element_type=fields.integer("element_type", 0, 10),
    )
    fields.done()
    _check_descriptor(descriptor, fields.where)
    if isinstance(descriptor.base, BufferArgument):
        end = descriptor.base.offset + descriptor.extent_bytes
        _check_inside(descriptor.base.arena, end, arenas, fields.where)
    return descriptor


def _check_descriptor(descriptor: DescriptorArgument, where: str) -> None:
    """The rules of cuTensorMapEncodeTiled.

    Source: CUDA driver API reference, tensor map object management.
    """
    rank = descriptor.rank
    if not 1 <= rank <= 5 or len(descriptor.strides) != rank or len(descriptor.box) != rank:
        raise PlanError(
            f"{where}: expected 1 to 5 axes in shape, strides and box alike, got "
            f"{list(descriptor.shape)}, "
            f"{list(descriptor.strides)}, {list(descriptor.box)}."
        )
    size = descriptor.dtype.size_bytes
    if descriptor.strides[-1] != 1 or any(n * size % 16 for n in descriptor.strides[:-1]):
        raise PlanError(
            f"{where}.strides: the last is 1 and the others are multiples of 16 bytes, "
            f"got {list(descriptor.strides)} elements of {size} bytes."
        )
    if descriptor.base.offset % 16:
        raise PlanError(f"{where}.base: expected a multiple of 16, got {descriptor.base.offset}.")
    expected = _ELEMENT_TYPES[descriptor.dtype]
    if descriptor.element_type not in expected:
        raise PlanError(
            f"{where}.element_type: {descriptor.dtype.value} has {expected}, got "
            f"{descriptor.element_type}."
        )
