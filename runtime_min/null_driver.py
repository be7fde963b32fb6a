"""A driver without a device: records calls and refuses those that a device would suffer from.

It computes nothing. Its memory starts as 0xFF bytes (NaN in every float type), so results that were
never computed cannot be taken for actions. A test may hand it kernels written in Python, which then
run on replay.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from policyc.runtime_min.driver_interface import Bytes, DeviceFacts, KernelLaunch, TensorMap
from policyc.runtime_min.errors import DeviceError

_FIRST_ADDRESS = 0x7000_0000_0000
_ALIGNMENT = 512
_LARGEST_KEPT_BYTES = 256 << 20
"""Larger allocations (weights of full size) keep no contents."""

_T = TypeVar("_T")
EmulatedKernel = Callable[["NullDriver", KernelLaunch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A recorded call: the driver method and what it was given."""

    name: str
    details: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class _Allocation:
    address: int
    size: int
    contents: Bytes | None


@dataclass(slots=True)
class _Live:
    """Handles in use."""

    pinned: dict[int, Bytes] = field(default_factory=dict)
    modules: dict[int, str] = field(default_factory=dict)
    functions: dict[int, tuple[int, str]] = field(default_factory=dict)
    graphs: dict[int, tuple[KernelLaunch, ...]] = field(default_factory=dict)
    events: dict[int, int] = field(default_factory=dict)


def null_facts(compute_capability: int, driver_version: int) -> DeviceFacts:
    """Facts of a null device that has enough of everything."""
    return DeviceFacts(
        name="null device",
        compute_capability=compute_capability,
        driver_version=driver_version,
        total_bytes=1 << 48,
        integrated=False,
    )


class NullDriver:
    """Records calls in `calls`. See `driver_interface.Driver` for the contract."""

    def __init__(
        self,
        facts: DeviceFacts,
        kernels: Mapping[str, EmulatedKernel] | None = None,
        free_bytes: int | None = None,
        launch_us: float = 0.0,
    ) -> None:
        """`kernels`: entry -> Python code to run on replay; `free_bytes`: less than everything;
        `launch_us`: what events count for each replayed launch.
        """
        self.calls: list[Call] = []
        self._facts = facts
        self._kernels = dict(kernels or {})
        self._limit = facts.total_bytes if free_bytes is None else free_bytes
        self._allocations: list[_Allocation] = []
        self._addresses: list[int] = []
        self._next_address = _FIRST_ADDRESS
        self._next_handle = 1
        self._live = _Live()
        self._captured: list[KernelLaunch] | None = None
        self._written: list[tuple[int, int]] = []
        self._launch_us = launch_us
        self._replayed = 0
        self._closed = False
        self._current = threading.local()

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    @property
    def is_empty(self) -> bool:
        """Has everything been freed?"""
        live = self._live
        return not (self._allocations or live.pinned or live.modules or live.graphs or live.events)

    @property
    def allocated_bytes(self) -> int:
        return sum(allocation.size for allocation in self._allocations)

    def exclusive(self) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def current(self) -> Iterator[None]:
        if self._closed:
            raise DeviceError("null driver: used after close.")
        depth = getattr(self._current, "depth", 0)
        self._current.depth = depth + 1
        try:
            yield
        finally:
            self._current.depth = depth

    def free_bytes(self) -> int:
        return self._limit - self.allocated_bytes

    def allocate(self, size: int, purpose: str) -> int:
        self._record("allocate", size, purpose)
        if not 0 < size <= self.free_bytes():
            raise DeviceError(f"null driver: can't allocate {size} bytes for {purpose}.")
        address = self._next_address
        self._next_address += -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        contents = np.full(size, 0xFF, np.uint8) if size <= _LARGEST_KEPT_BYTES else None
        self._allocations.append(_Allocation(address, size, contents))
        self._addresses.append(address)
        return address

    def free(self, address: int) -> None:
        self._record("free", address)
        if address not in self._addresses:
            raise DeviceError(f"null driver: free of {address:#x}, which is not allocated.")
        index = self._addresses.index(address)
        del self._addresses[index], self._allocations[index]

    def allocate_pinned(self, size: int) -> Bytes:
        self._record("allocate_pinned", size)
        memory = np.zeros(size, np.uint8)
        self._live.pinned[memory.ctypes.data] = memory
        return memory

    def free_pinned(self, memory: Bytes) -> None:
        self._record("free_pinned", memory.nbytes)
        if self._live.pinned.pop(memory.ctypes.data, None) is None:
            raise DeviceError("null driver: free of pinned memory that is not allocated.")

    def copy_to_device(self, address: int, source: Bytes) -> None:
        self._record("copy_to_device", address, source.nbytes)
        self._check_separate(address, source.nbytes)
        target = self._range(address, source.nbytes, "copy to device")
        if target is not None:
            target[:] = source

    def copy_to_host(self, target: Bytes, address: int) -> None:
        self._record("copy_to_host", address, target.nbytes)
        source = self._range(address, target.nbytes, "copy to host")
        if source is None:
            raise DeviceError("null driver: this allocation is too large to keep its contents.")
        target[:] = source

    def fill(self, address: int, value: int, size: int) -> None:
        self._record("fill", address, value, size)
        target = self._range(address, size, "fill")
        if target is not None:
            target[:] = value

    def load_module(self, image: bytes, name: str) -> int:
        self._record("load_module", name, len(image))
        return self._new_handle(self._live.modules, name)

    def unload_module(self, module: int) -> None:
        self._record("unload_module", module)
        if self._live.modules.pop(module, None) is None:
            raise DeviceError(f"null driver: module {module} is not loaded.")

    def function(self, module: int, entry: str, shared_bytes: int) -> int:
        self._record("function", module, entry, shared_bytes)
        if module not in self._live.modules:
            raise DeviceError(f"null driver: module {module} is not loaded.")
        return self._new_handle(self._live.functions, (module, entry))

    def encode_tensor_map(self, tensor_map: TensorMap) -> bytes:
        """Address and element type in the first bytes, so that tests can find them."""
        self._record("encode_tensor_map", tensor_map)
        self._range(tensor_map.address, 1, "tensor map")
        return struct.pack("<Qi", tensor_map.address, tensor_map.element_type).ljust(128, b"\0")

    def launch(self, launch: KernelLaunch) -> None:
        if self._captured is None:
            raise DeviceError(f"null driver: launch outside a capture: {launch.label}.")
        self._check_launch(launch)
        self.calls.append(Call(name="launch", details=(launch,)))
        self._captured.append(launch)

    def begin_capture(self) -> None:
        self._record("begin_capture")
        self._captured = []

    def end_capture(self) -> int:
        if self._captured is None:
            raise DeviceError("null driver: end of a capture that was not begun.")
        launches, self._captured = tuple(self._captured), None
        self._record("end_capture", len(launches))
        return self._new_handle(self._live.graphs, launches)

    def abort_capture(self) -> None:
        self._captured = None
        self._record("abort_capture")

    def upload_graph(self, graph: int) -> None:
        self._record("upload_graph", graph)
        self._graph(graph)

    def launch_graph(self, graph: int) -> None:
        self._record("launch_graph", graph)
        self._written.clear()
        for launch in self._graph(graph):
            self._check_launch(launch)
            self._replayed += 1
            _, entry = self._live.functions[launch.function]
            if entry in self._kernels:
                self._kernels[entry](self, launch)

    def destroy_graph(self, graph: int) -> None:
        self._record("destroy_graph", graph)
        self._graph(graph)
        del self._live.graphs[graph]

    def create_event(self) -> int:
        self._record("create_event")
        event = self._next_handle
        self._next_handle += 1
        self._live.events[event] = self._replayed
        return event

    def record_event(self, event: int) -> None:
        self._event("record_event", event)
        self._live.events[event] = self._replayed

    def wait_event(self, event: int) -> None:
        self._event("wait_event", event)

    def elapsed_us(self, start: int, stop: int) -> float:
        """`launch_us` for each launch that was replayed between the two."""
        self._event("elapsed_us", start)
        self._event("elapsed_us", stop)
        return (self._live.events[stop] - self._live.events[start]) * self._launch_us

    def destroy_event(self, event: int) -> None:
        self._event("destroy_event", event)
        del self._live.events[event]

    def synchronize(self) -> None:
        self._record("synchronize")

    def close(self) -> None:
        if not self._closed:
            self.calls.append(Call(name="close"))
        self._closed = True

    def memory(self, address: int, size: int) -> Bytes:
        """A view of device memory, for emulated kernels."""
        view = self._range(address, size, "access of a kernel")
        assert view is not None, "emulated kernels work on small allocations"
        return view

    def _record(self, name: str, *details: object) -> None:
        if getattr(self._current, "depth", 0) == 0:
            raise DeviceError(f"null driver: {name} without the device being current.")
        if self._captured is not None and name != "begin_capture":
            raise DeviceError(f"null driver: {name} during a capture.")
        self.calls.append(Call(name=name, details=details))

    def _event(self, name: str, event: int) -> None:
        self._record(name, event)
        if event not in self._live.events:
            raise DeviceError(f"null driver: {name} of event {event}, which does not exist.")

    def _graph(self, graph: int) -> tuple[KernelLaunch, ...]:
        if graph not in self._live.graphs:
            raise DeviceError(f"null driver: graph {graph} does not exist.")
        return self._live.graphs[graph]

    def _new_handle(self, table: dict[int, _T], value: _T) -> int:
        handle = self._next_handle
        self._next_handle += 1
        table[handle] = value
        return handle

    def _check_launch(self, launch: KernelLaunch) -> None:
        module, _ = self._live.functions.get(launch.function, (0, ""))
        if module not in self._live.modules:
            raise DeviceError(f"null driver: launch of an unloaded function: {launch.label}.")
        for pointer in launch.pointers:
            self._range(pointer, 1, f"pointer argument of {launch.label}")

    def _check_separate(self, address: int, size: int) -> None:
        """Two copies into the same bytes with no replay between them: one of them is lost."""
        for start, end in self._written:
            if address < end and start < address + size:
                raise DeviceError(
                    f"null driver: copy to {address:#x} + {size} overlaps an earlier one, "
                    f"{start:#x} to {end:#x}."
                )
        self._written.append((address, address + size))

    def _range(self, address: int, size: int, purpose: str) -> Bytes | None:
        """The bytes of a range inside one live allocation; None if it keeps no contents."""
        index = bisect_right(self._addresses, address) - 1
        if index >= 0:
            allocation = self._allocations[index]
            start = address - allocation.address
            if start + size <= allocation.size:
                contents = allocation.contents
                return None if contents is None else contents[start : start + size]
        raise DeviceError(
            f"null driver: {purpose}: {address:#x} + {size} is not inside a live allocation."
        )
