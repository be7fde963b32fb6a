"""The CUDA driver against NVIDIA's own structs and enums, with the driver calls recorded.

`test_stub_library.py` checks what reaches the driver library itself.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from policyc.runtime_min import driver as driver_module
from policyc.runtime_min.driver import CudaDriver, count_devices
from policyc.runtime_min.driver_interface import KernelLaunch
from policyc.runtime_min.errors import DeviceError

cuda = pytest.importorskip("cuda.bindings.driver")


class RecordedCuda:
    """The real bindings, except that functions record their arguments and return canned results."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failing: str = ""
        self.results: dict[str, tuple[Any, ...]] = {
            "cuDeviceGetCount": (1,),
            "cuDeviceGet": (0,),
            "cuDeviceGetName": (b"NVIDIA H200\0\0",),
            "cuDriverGetVersion": (13000,),
            "cuDeviceTotalMem": (1 << 37,),
            "cuDevicePrimaryCtxRetain": (cuda.CUcontext(11),),
            "cuCtxPopCurrent": (cuda.CUcontext(11),),
            "cuStreamCreate": (cuda.CUstream(22),),
            "cuMemAlloc": (cuda.CUdeviceptr(0x7000),),
            "cuMemGetInfo": (10, 20),
            "cuModuleLoadData": (cuda.CUmodule(33),),
            "cuModuleGetFunction": (cuda.CUfunction(44),),
            "cuFuncGetAttribute": (32,),
            "cuStreamEndCapture": (cuda.CUgraph(55),),
            "cuGraphInstantiate": (cuda.CUgraphExec(66),),
            "cuEventCreate": (cuda.CUevent(77),),
            "cuEventElapsedTime": (0.25,),
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name.startswith("cuuint"):
            return getattr(cuda, name)
        if name in ("cuGetErrorName", "cuGetErrorString"):
            return lambda code: (cuda.CUresult.CUDA_SUCCESS, b"CUDA_ERROR_LAUNCH_FAILED")
        assert hasattr(cuda, name), f"the bindings have no {name}"
        return lambda *arguments: self.call(name, arguments)

    def call(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        self.calls.append((name, arguments))
        if name == self.failing:
            nothing = [None] * len(self.results.get(name, ()))
            return cuda.CUresult.CUDA_ERROR_LAUNCH_FAILED, *nothing
        if name == "cuDeviceGetAttribute":
            attributes = cuda.CUdevice_attribute
            major = attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
            return cuda.CUresult.CUDA_SUCCESS, 9 if arguments[0] == major else 0
        return (cuda.CUresult.CUDA_SUCCESS, *self.results.get(name, ()))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> RecordedCuda:
    recorded = RecordedCuda()
    monkeypatch.setattr(driver_module, "_bindings", lambda: recorded)
    monkeypatch.setattr(driver_module, "count_devices", lambda: 1)
    return recorded


def launch_with(**changes: Any) -> KernelLaunch:
    values: dict[str, Any] = {
        "function": 44,
        "grid": (6, 5, 4),
        "block_threads": 128,
        "shared_bytes": 60000,
        "cluster": 1,
        "pdl": False,
        "arguments": np.arange(16, dtype=np.uint8),
        "offsets": (0, 8),
        "pointers": (),
        "label": "node x",
    }
    return KernelLaunch(**{**values, **changes})


def test_facts(recorded: RecordedCuda) -> None:
    facts = CudaDriver(0).facts
    assert (facts.name, facts.compute_capability) == ("NVIDIA H200", 90)
    assert (facts.driver_version, facts.total_bytes, facts.integrated) == (13000, 1 << 37, False)


def test_close_releases_once(recorded: RecordedCuda) -> None:
    """case 71"""
    driver = CudaDriver(0)
    driver.close()
    driver.close()
    assert len(recorded.named("cuStreamDestroy")) == 1
    assert len(recorded.named("cuDevicePrimaryCtxRelease")) == 1
    assert len(recorded.named("cuCtxPushCurrent")) == len(recorded.named("cuCtxPopCurrent"))
    with pytest.raises(DeviceError, match="is closed"), driver.current():
        pass


def test_an_error_has_call_code_and_context(recorded: RecordedCuda) -> None:
    driver = CudaDriver(0)
    recorded.failing = "cuMemAlloc"
    expected = r"cuMemAlloc \(64 bytes for weights\) failed: CUDA_ERROR_LAUNCH_FAILED"
    with pytest.raises(DeviceError, match=expected):
        driver.allocate(64, "weights")


def test_launch_configuration_and_parameters(recorded: RecordedCuda) -> None:
    driver = CudaDriver(0)
    launch = launch_with()
    driver.launch(launch)
    ((config, function, parameters, extra),) = recorded.named("cuLaunchKernelEx")
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (6, 5, 4)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (128, 1, 1)
    assert (config.sharedMemBytes, int(config.hStream), config.numAttrs) == (60000, 22, 0)
    assert (int(function), extra) == (44, 0)
    assert isinstance(parameters, int)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pdl": True}, [(6, struct.pack("<i", 1))]),
        ({"cluster": 2}, [(4, struct.pack("<iii", 2, 1, 1)), (5, struct.pack("<i", 1))]),
        (
            {"pdl": True, "cluster": 4},
            [(6, b"\1"), (4, struct.pack("<iii", 4, 1, 1)), (5, b"\1")],
        ),
    ],
)
def test_launch_attributes(
    recorded: RecordedCuda, changes: dict[str, Any], expected: list[tuple[int, bytes]]
) -> None:
    CudaDriver(0).launch(launch_with(**changes))
    ((config, *_),) = recorded.named("cuLaunchKernelEx")
    assert config.numAttrs == len(expected)
    for attribute, (identity, value) in zip(config.attrs, expected, strict=True):
        assert int(attribute.id) == identity
        assert bytes(attribute.value.pad)[: len(value)] == value


def test_large_shared_memory_is_allowed_first(recorded: RecordedCuda) -> None:
    driver = CudaDriver(0)
    driver.function(33, "small", 48 * 1024)
    assert recorded.named("cuFuncSetAttribute") == []
    driver.function(33, "large", 48 * 1024 + 1)
    ((_, attribute, value),) = recorded.named("cuFuncSetAttribute")
    assert (int(attribute), value) == (8, 48 * 1024 + 1)
    assert len(recorded.named("cuFuncGetAttribute")) == 2, "both are loaded before any capture"


def test_capture_instantiates_and_drops_the_graph(recorded: RecordedCuda) -> None:
    driver = CudaDriver(0)
    driver.begin_capture()
    assert driver.end_capture() == 66
    ((stream, mode),) = recorded.named("cuStreamBeginCapture")
    assert (stream, int(mode)) == (22, 1)
    assert [int(graph) for (graph,) in recorded.named("cuGraphDestroy")] == [55]


def test_aborting_a_capture_does_not_raise(recorded: RecordedCuda) -> None:
    """case 63"""
    driver = CudaDriver(0)
    recorded.failing = "cuStreamEndCapture"
    driver.begin_capture()
    driver.abort_capture()
    assert recorded.named("cuGraphDestroy") == []


def test_copies_pass_addresses_and_sizes(recorded: RecordedCuda) -> None:
    driver = CudaDriver(0)
    data = np.zeros(24, np.uint8)
    driver.copy_to_device(0x7000, data)
    driver.copy_to_host(data, 0x7008)
    driver.fill(0x7000, 255, 24)
    assert recorded.named("cuMemcpyHtoDAsync") == [(0x7000, data.ctypes.data, 24, 22)]
    assert recorded.named("cuMemcpyDtoHAsync") == [(data.ctypes.data, 0x7008, 24, 22)]
    assert recorded.named("cuMemsetD8Async") == [(0x7000, 255, 24, 22)]


def test_pinned_memory_is_the_drivers(recorded: RecordedCuda) -> None:
    block = ctypes.create_string_buffer(b"\x05" * 32, 32)
    recorded.results["cuMemHostAlloc"] = (ctypes.addressof(block),)
    driver = CudaDriver(0)
    memory = driver.allocate_pinned(32)
    memory[3] = 9
    assert block.raw[:5] == b"\x05\x05\x05\x09\x05"
    driver.free_pinned(memory)
    assert recorded.named("cuMemFreeHost") == [(ctypes.addressof(block),)]


def test_elapsed_time_is_in_microseconds(recorded: RecordedCuda) -> None:
    assert CudaDriver(0).elapsed_us(1, 2) == 250.0


def test_no_driver_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """case 58"""
    monkeypatch.setattr(driver_module, "_LIBRARY", "libno-such-driver.so.1")
    assert count_devices() == 0
    with pytest.raises(DeviceError, match=r"offers 0 device\(s\).*pass device='cpu'"):
        CudaDriver(0)


@pytest.mark.parametrize("status", [34, 100])
def test_a_driver_without_devices_counts_none(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    library = SimpleNamespace(cuInit=lambda flags: status)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert count_devices() == 0


def test_a_broken_driver_is_an_error_and_not_a_slow_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(cuInit=lambda flags: 803)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    with pytest.raises(DeviceError, match=r"returned 803\. Repair the NVIDIA driver"):
        count_devices()


def test_devices_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(pointer: Any) -> int:
        pointer._obj.value = 2
        return 0

    library = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=count)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert count_devices() == 2


def test_missing_bindings_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "count_devices", lambda: 1)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match=r"install policyc\[cuda\], or pass device='cpu'"):
        CudaDriver(0)


def test_an_unknown_ordinal(recorded: RecordedCuda) -> None:
    with pytest.raises(DeviceError, match=r"cuda:3 was asked for; .* offers 1 device"):
        CudaDriver(3)
