"""Packs the arguments of a launch into the bytes that a kernel reads.

Source of the layout: how Triton 3.6 and 3.9 pass parameters (`plan`), and the CUDA driver API's
`cuTensorMapEncodeTiled`, whose axes stand innermost first and whose strides are bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from policyc.runtime_min.driver_interface import Bytes, KernelLaunch, TensorMap
from policyc.runtime_min.plan import (
    Argument,
    BufferArgument,
    DescriptorArgument,
    FloatArgument,
    IntegerArgument,
    Kernel,
    Launch,
    NullArgument,
    WeightArgument,
)

_ALIGNMENT = 64
"""Of the packed bytes: a tensor map among them must be aligned to 64."""

# Triton numbers f32_ftz, f64 and bf16 as 8, 9, 10; CUtensorMapDataType has f64 8, bf16 9, f32_ftz
# 10.
_DRIVER_ELEMENT_TYPES = {8: 10, 9: 8, 10: 9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Device addresses of arenas and weights, by name."""

    arenas: Mapping[str, int]
    weights: Mapping[str, int]

    def address(self, pointer: BufferArgument | WeightArgument) -> int:
        if isinstance(pointer, BufferArgument):
            return self.arenas[pointer.arena] + pointer.offset
        return self.weights[pointer.weight] + pointer.offset


def tensor_map(descriptor: DescriptorArgument, address: int) -> TensorMap:
    """Operands of the driver's encoder for a descriptor whose base lies at `address`."""
    size = descriptor.dtype.size_bytes
    element_type = descriptor.element_type
    return TensorMap(
        element_type=_DRIVER_ELEMENT_TYPES.get(element_type, element_type),
        address=address,
        dims=descriptor.shape[::-1],
        strides=tuple(stride * size for stride in descriptor.strides[-2::-1]),
        box=descriptor.box[::-1],
        swizzle=descriptor.swizzle,
    )


def pack_launch(
    launch: Launch,
    kernel: Kernel,
    function: int,
    placement: Placement,
    encode: Callable[[TensorMap], bytes],
) -> KernelLaunch:
    """The launch with its arguments as bytes, at the offsets that the kernel declares.

    Args:
        launch, kernel: of one plan; the plan reader has checked that they agree.
        function: the driver's handle of the kernel's entry.
        placement: where arenas and weights lie.
        encode: the driver's tensor map encoder.
    """
    end = max((item.offset + item.size for item in kernel.params), default=0)
    arguments = _aligned_bytes(end)
    values = (value for item in launch.args for value in _values(item, placement, encode))
    for parameter, value in zip(kernel.params, values, strict=True):
        assert len(value) == parameter.size, "the plan reader compares the sizes"
        arguments[parameter.offset : parameter.offset + parameter.size] = np.frombuffer(
            value, np.uint8
        )
    return KernelLaunch(
        function=function,
        grid=launch.grid,
        block_threads=kernel.block_threads,
        shared_bytes=kernel.shared_bytes,
        cluster=kernel.cluster,
        pdl=kernel.pdl,
        arguments=arguments,
        offsets=tuple(parameter.offset for parameter in kernel.params),
        pointers=tuple(_pointers(launch, placement)),
        label=(
            f"stage {launch.stage}, node {launch.node}, kernel {kernel.entry}, "
            f"origin {launch.origin}"
        ),
    )


def _values(
    argument: Argument, placement: Placement, encode: Callable[[TensorMap], bytes]
) -> Iterator[bytes]:
    match argument:
        case BufferArgument() | WeightArgument():
            yield struct.pack("<Q", placement.address(argument))
        case IntegerArgument():
            yield struct.pack("<i", argument.value)
        case FloatArgument():
            yield struct.pack("<f", argument.value)
        case NullArgument():
            yield bytes(8)
        case DescriptorArgument():
            yield encode(tensor_map(argument, placement.address(argument.base)))
            yield from (struct.pack("<i", size) for size in argument.shape)
            yield from (struct.pack("<q", stride) for stride in argument.strides)


def _pointers(launch: Launch, placement: Placement) -> Iterator[int]:
    for argument in launch.args:
        pointer = argument.base if isinstance(argument, DescriptorArgument) else argument
        if isinstance(pointer, BufferArgument | WeightArgument):
            yield placement.address(pointer)


def _aligned_bytes(size: int) -> Bytes:
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]
