from __future__ import annotations

import struct

import pytest

from policyc.compiler.ir.types import DType
from policyc.runtime_min.arguments import Placement, pack_launch, tensor_map
from policyc.runtime_min.driver_interface import TensorMap
from policyc.runtime_min.plan import DescriptorArgument, Kernel, Launch, WeightArgument
from tests.runtime_min.bundles import bucket, kernels

ARENAS = {"prompt": 0x1000, "step": 0x2000, "observation": 0x3000}
WEIGHTS = {"table": 0x4000, "w": 0x5000}
PLACEMENT = Placement(arenas=ARENAS, weights=WEIGHTS)


def encode(operands: TensorMap) -> bytes:
    return struct.pack("<Q", operands.address).ljust(128, b"\xee")


def launch_of(name: str) -> tuple[Launch, Kernel]:
    launch = next(item for item in bucket(1).launches if item.kernel == name)
    return launch, kernels()[name]


def test_pointers_integers_and_nulls() -> None:
    packed = pack_launch(*launch_of("embed"), 7, PLACEMENT, encode)
    expected = struct.pack("<QQQixxxxQQ", 0x1000, 0x4000, 0x1000 + 2048, 64, 0, 0)
    assert packed.arguments.tobytes() == expected
    assert packed.offsets == (0, 8, 16, 24, 32, 40)
    assert packed.pointers == (0x1000, 0x4000, 0x1000 + 2048)
    assert packed.function == 7


def test_a_descriptor_is_map_shape_and_strides() -> None:
    packed = pack_launch(*launch_of("add"), 7, PLACEMENT, encode)
    data = packed.arguments.tobytes()
    assert data[:128] == encode(
        TensorMap(element_type=7, address=0x2000, dims=(), strides=(), box=(), swizzle=0)
    )
    assert struct.unpack_from("<iiqqQQfxxxxQQ", data, 128) == (
        3, 4, 4, 1, 0x2000 + 256, 0x2000 + 512, 1.0, 0, 0
    )  # fmt: skip
    assert packed.arguments.ctypes.data % 64 == 0
    assert packed.pointers[0] == 0x2000


def test_launch_attributes_come_from_the_kernel() -> None:
    packed = pack_launch(*launch_of("linear"), 7, PLACEMENT, encode)
    assert (packed.pdl, packed.cluster, packed.shared_bytes) == (True, 2, 60000)
    assert (packed.grid, packed.block_threads) == ((2, 1, 1), 128)
    assert packed.label == ("stage denoise, node hidden, kernel small_linear, origin tests.linear")


@pytest.mark.parametrize(
    ("dtype", "element_type", "driver_type"),
    [(DType.BF16, 10, 9), (DType.F64, 9, 8), (DType.F32, 8, 10), (DType.F32, 7, 7)],
)
def test_tensor_maps_stand_innermost_first(
    dtype: DType, element_type: int, driver_type: int
) -> None:
    descriptor = DescriptorArgument(
        base=WeightArgument(weight="w", offset=32),
        dtype=dtype,
        shape=(5, 100, 64),
        strides=(6400, 64, 1),
        box=(1, 16, 32),
        swizzle=3,
        element_type=element_type,
    )
    size = dtype.size_bytes
    assert tensor_map(descriptor, 99) == TensorMap(
        element_type=driver_type,
        address=99,
        dims=(64, 100, 5),
        strides=(64 * size, 6400 * size),
        box=(32, 16, 1),
        swizzle=3,
    )
