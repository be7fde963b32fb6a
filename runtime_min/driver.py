"""CUDA driver calls, through NVIDIA's `cuda-bindings`. The only file that touches them.

Source of struct fields, attribute ids and entry points: CUDA driver API reference, version 13.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from policyc.runtime_min.driver_interface import Bytes, DeviceFacts, KernelLaunch, TensorMap
from policyc.runtime_min.errors import DeviceError
from policyc.runtime_min.plan import TENSOR_MAP_BYTES

_LIBRARY = "libcuda.so.1"
_NO_DEVICE = (34, 100)
"""CUDA_ERROR_STUB_LIBRARY and CUDA_ERROR_NO_DEVICE."""
_TENSOR_MAP_ALIGNMENT = 64
_SHARED_BYTES_WITHOUT_ATTRIBUTE = 48 * 1024
_RUNS: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
"""Taken while kernels of a device run, by ordinal. State of the process, because the device is: the
thread blocks of a split attention wait for each other, and two such grids at once, each half
resident, would wait for ever."""


def count_devices() -> int:
    """GPUs that the machine's CUDA driver offers; 0 where there is no driver or no GPU.

    Needs no `cuda-bindings`, so that a robot without that wheel gets an error instead of a slow
    CPU.

    Raises:
        DeviceError: a driver is installed but does not start, for the same reason.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return 0
    status = library.cuInit(0)
    if status in _NO_DEVICE:
        return 0
    count = ctypes.c_int(0)
    status = status or library.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        raise DeviceError(
            f"{_LIBRARY} is installed but cuInit or cuDeviceGetCount returned {status}. Repair the "
            "NVIDIA driver (`nvidia-smi` shows its state), or pass device='cpu'."
        )
    return count.value


def _bindings() -> Any:  # noqa: ANN401  (the bindings have no type information)
    try:
        from cuda.bindings import driver
    except ImportError as fault:
        raise DeviceError(
            f"cuda.bindings.driver can't be imported: {fault}. A CUDA device was asked for; "
            "install "
            "policyc[cuda], or pass device='cpu'."
        ) from fault
    return driver


class CudaDriver:
    """One CUDA device: its primary context and one stream.

    `driver_interface.Driver` has the contract.
    """

    def __init__(self, ordinal: int) -> None:
        """Open device `ordinal`.

        Raises:
            DeviceError: no bindings, no driver, no such device.
        """
        count = count_devices()
        if not 0 <= ordinal < count:
            raise DeviceError(
                f"cuda:{ordinal} was asked for; the CUDA driver of this machine offers {count} "
                "device(s). "
                "Install or repair the NVIDIA driver, or pass device='cpu'."
            )
        self._cuda = _bindings()
        self._open = False
        self._stream = 0
        self._call("cuInit", 0)
        self._ordinal = ordinal
        self._device = self._call("cuDeviceGet", ordinal)
        self._facts = self._read_facts()
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._open = True
        with self.current():
            flag = self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._stream = int(self._call("cuStreamCreate", int(flag)))

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the context current in this thread and restores the caller's afterwards."""
        if not self._open:
            raise DeviceError("the CUDA driver of this policy is closed.")
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def exclusive(self) -> threading.Lock:
        return _RUNS[self._ordinal]

    def free_bytes(self) -> int:
        return int(self._call("cuMemGetInfo")[0])

    def allocate(self, size: int, purpose: str) -> int:
        return int(self._call("cuMemAlloc", size, context=f"{size} bytes for {purpose}"))

    def free(self, address: int) -> None:
        self._call("cuMemFree", address)

    def allocate_pinned(self, size: int) -> Bytes:
        address = int(self._call("cuMemHostAlloc", size, 0, context=f"{size} pinned bytes"))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def free_pinned(self, memory: Bytes) -> None:
        self._call("cuMemFreeHost", memory.ctypes.data)

    def copy_to_device(self, address: int, source: Bytes) -> None:
        self._call("cuMemcpyHtoDAsync", address, source.ctypes.data, source.nbytes, self._stream)

    def copy_to_host(self, target: Bytes, address: int) -> None:
        self._call("cuMemcpyDtoHAsync", target.ctypes.data, address, target.nbytes, self._stream)

    def fill(self, address: int, value: int, size: int) -> None:
        self._call("cuMemsetD8Async", address, value, size, self._stream)

    def load_module(self, image: bytes, name: str) -> int:
        return int(self._call("cuModuleLoadData", image, context=name))

    def unload_module(self, module: int) -> None:
        self._call("cuModuleUnload", self._cuda.CUmodule(module))

    def function(self, module: int, entry: str, shared_bytes: int) -> int:
        function = self._call(
            "cuModuleGetFunction", self._cuda.CUmodule(module), entry.encode(), context=entry
        )
        attribute = self._cuda.CUfunction_attribute
        if shared_bytes > _SHARED_BYTES_WITHOUT_ATTRIBUTE:
            self._call(
                "cuFuncSetAttribute",
                function,
                attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared_bytes,
                context=f"{entry}, {shared_bytes} bytes of shared memory",
            )
        # Asking for an attribute loads the code now: a module loaded lazily would abort the
        # capture.
        self._call("cuFuncGetAttribute", attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function)
        return int(function)

    def encode_tensor_map(self, tensor_map: TensorMap) -> bytes:
        # By ctypes: the driver wants the result at a multiple of 64 bytes, and the bindings place
        # it wherever their Python object happens to lie.
        memory = (ctypes.c_uint8 * (2 * TENSOR_MAP_BYTES))()
        start = -ctypes.addressof(memory) % _TENSOR_MAP_ALIGNMENT
        rank = len(tensor_map.dims)
        code = ctypes.CDLL(_LIBRARY).cuTensorMapEncodeTiled(
            ctypes.byref(memory, start),
            tensor_map.element_type,
            ctypes.c_uint32(rank),
            ctypes.c_void_p(tensor_map.address),
            (ctypes.c_uint64 * rank)(*tensor_map.dims),
            (ctypes.c_uint64 * rank)(*tensor_map.strides),
            (ctypes.c_uint32 * rank)(*tensor_map.box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            int(self._cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            tensor_map.swizzle,
            int(self._cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
            int(self._cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
        self._check("cuTensorMapEncodeTiled", self._cuda.CUresult(code), str(tensor_map))
        return bytes(memory[start : start + TENSOR_MAP_BYTES])

    def launch(self, launch: KernelLaunch) -> None:
        cuda = self._cuda
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block_threads, 1, 1
        config.sharedMemBytes = launch.shared_bytes
        config.hStream = cuda.CUstream(self._stream)
        attributes = self._launch_attributes(launch)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        base = launch.arguments.ctypes.data
        pointers = np.asarray([base + offset for offset in launch.offsets], np.uint64)
        function = cuda.CUfunction(launch.function)
        self._call(
            "cuLaunchKernelEx", config, function, pointers.ctypes.data, 0, context=launch.label
        )

    def _launch_attributes(self, launch: KernelLaunch) -> list[Any]:
        ids = self._cuda.CUlaunchAttributeID
        attributes: list[Any] = []
        if launch.pdl:
            attribute = self._cuda.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if launch.cluster > 1:
            dimension = self._cuda.CUlaunchAttribute()
            dimension.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dimension.value.clusterDim.x = launch.cluster
            dimension.value.clusterDim.y = 1
            dimension.value.clusterDim.z = 1
            policy = self._cuda.CUlaunchAttribute()
            policy.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
            policies = self._cuda.CUclusterSchedulingPolicy
            spread = policies.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
            policy.value.clusterSchedulingPolicyPreference = spread
            attributes += [dimension, policy]
        return attributes

    def begin_capture(self) -> None:
        mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", self._stream, mode)

    def end_capture(self) -> int:
        graph = self._call("cuStreamEndCapture", self._stream)
        try:
            return int(self._call("cuGraphInstantiate", graph, 0))
        finally:
            self._call("cuGraphDestroy", graph)

    def abort_capture(self) -> None:
        # An invalidated capture makes this call report the invalidation, which is why we are here.
        _, graph = self._cuda.cuStreamEndCapture(self._stream)
        if graph is not None and int(graph) != 0:
            self._call("cuGraphDestroy", graph)

    def upload_graph(self, graph: int) -> None:
        self._call("cuGraphUpload", self._cuda.CUgraphExec(graph), self._stream)

    def launch_graph(self, graph: int) -> None:
        self._call("cuGraphLaunch", graph, self._stream)

    def destroy_graph(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", self._cuda.CUgraphExec(graph))

    def create_event(self) -> int:
        return int(self._call("cuEventCreate", 0))

    def record_event(self, event: int) -> None:
        self._call("cuEventRecord", event, self._stream)

    def wait_event(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def elapsed_us(self, start: int, stop: int) -> float:
        return float(self._call("cuEventElapsedTime", start, stop)) * 1000.0

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy", event)

    def synchronize(self) -> None:
        self._call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        if not self._open:
            return
        try:
            with self.current():
                if self._stream:
                    self._call("cuStreamDestroy", self._stream)
        finally:
            self._open = False
            self._call("cuDevicePrimaryCtxRelease", self._device)

    def _read_facts(self) -> DeviceFacts:
        attributes = self._cuda.CUdevice_attribute
        major, minor, integrated = (
            int(self._call("cuDeviceGetAttribute", attribute, self._device))
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                attributes.CU_DEVICE_ATTRIBUTE_INTEGRATED,
            )
        )
        name = self._call("cuDeviceGetName", 256, self._device)
        return DeviceFacts(
            name=name.split(b"\0")[0].decode("ascii", "replace"),
            compute_capability=major * 10 + minor,
            driver_version=int(self._call("cuDriverGetVersion")),
            total_bytes=int(self._call("cuDeviceTotalMem", self._device)),
            integrated=bool(integrated),
        )

    def _call(self, name: str, *arguments: object, context: str = "") -> Any:  # noqa: ANN401
        """Result of a driver call (a tuple if it has several); raises DeviceError on any code but
        0.
        """
        code, *results = getattr(self._cuda, name)(*arguments)
        self._check(name, code, context)
        if not results:
            return None
        return results[0] if len(results) == 1 else results

    def _check(self, name: str, code: object, context: str) -> None:
        if code != self._cuda.CUresult.CUDA_SUCCESS:
            where = f" ({context})" if context else ""
            raise DeviceError(f"{name}{where} failed: {self._error_text(code)}.")

    def _error_text(self, code: object) -> str:
        _, name = self._cuda.cuGetErrorName(code)
        _, text = self._cuda.cuGetErrorString(code)
        return f"{(name or b'unknown').decode()}: {(text or b'no description').decode()}"
