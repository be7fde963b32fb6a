"""What the device executor asks of a driver.

`driver` does it on a GPU, `null_driver` only records it.

A driver owns one device, its context and one stream; every asynchronous call is ordered on that
stream. Handles and device addresses are plain integers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device.

    `driver_version` is what `cuDriverGetVersion` gives (13000: 13.0); an `integrated` device shares
    the host's memory.
    """

    name: str
    compute_capability: int
    driver_version: int
    total_bytes: int
    integrated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """Operands of `cuTensorMapEncodeTiled`, innermost axis first.

    Strides are bytes, the innermost left out; `element_type` and `swizzle` are the driver's codes.
    """

    element_type: int
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaunch:
    """One launch: `arguments` holds the parameters, each at its entry of `offsets`.

    The driver reads `arguments` during the call only. `pointers` repeats the device addresses among
    them for a driver that checks, `label` is for messages.
    """

    function: int
    grid: tuple[int, int, int]
    block_threads: int
    shared_bytes: int
    cluster: int
    pdl: bool
    arguments: Bytes
    offsets: tuple[int, ...]
    pointers: tuple[int, ...]
    label: str


class Driver(Protocol):
    """A device with one stream.

    Every method raises DeviceError with the call, the code and the context.
    """

    @property
    def facts(self) -> DeviceFacts: ...

    def current(self) -> AbstractContextManager[None]:
        """Makes the device current in the calling thread; the other methods need it."""
        ...

    def exclusive(self) -> AbstractContextManager[object]:
        """Held from the first launch of a run until it is done: no two runs of a process share a
        device, since kernels may need all their thread blocks resident at once."""
        ...

    def free_bytes(self) -> int:
        """Free device memory as the driver reports it."""
        ...

    def allocate(self, size: int, purpose: str) -> int:
        """Device memory of `size` > 0 bytes, aligned to at least 256."""
        ...

    def free(self, address: int) -> None: ...

    def allocate_pinned(self, size: int) -> Bytes:
        """Page-locked host memory."""
        ...

    def free_pinned(self, memory: Bytes) -> None: ...

    def copy_to_device(self, address: int, source: Bytes) -> None:
        """Asynchronous where `source` is page-locked: it must not change before the stream is past
        it.
        """
        ...

    def copy_to_host(self, target: Bytes, address: int) -> None:
        """Asynchronous where `target` is page-locked; complete after `synchronize`."""
        ...

    def fill(self, address: int, value: int, size: int) -> None:
        """Sets `size` bytes to `value`."""
        ...

    def load_module(self, image: bytes, name: str) -> int: ...

    def unload_module(self, module: int) -> None: ...

    def function(self, module: int, entry: str, shared_bytes: int) -> int:
        """An entry of a module, with as much dynamic shared memory allowed as asked for."""
        ...

    def encode_tensor_map(self, tensor_map: TensorMap) -> bytes:
        """The 128 bytes of a tensor map."""
        ...

    def launch(self, launch: KernelLaunch) -> None: ...

    def begin_capture(self) -> None: ...

    def end_capture(self) -> int:
        """Ends the capture and instantiates the graph."""
        ...

    def abort_capture(self) -> None:
        """Ends a capture that failed, so that the stream can be used again."""
        ...

    def upload_graph(self, graph: int) -> None: ...

    def launch_graph(self, graph: int) -> None: ...

    def destroy_graph(self, graph: int) -> None: ...

    def create_event(self) -> int: ...

    def record_event(self, event: int) -> None: ...

    def wait_event(self, event: int) -> None:
        """Blocks the host until the stream is past the event's last record."""
        ...

    def elapsed_us(self, start: int, stop: int) -> float: ...

    def destroy_event(self, event: int) -> None: ...

    def synchronize(self) -> None: ...

    def close(self) -> None:
        """Releases stream and context; idempotent. What was allocated must be freed by then."""
        ...
