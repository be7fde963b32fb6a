from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from policyc.runtime_min.driver_interface import KernelLaunch
from policyc.runtime_min.errors import DeviceError
from policyc.runtime_min.null_driver import NullDriver, null_facts


@pytest.fixture
def driver() -> Iterator[NullDriver]:
    driver = NullDriver(null_facts(90, 12080))
    with driver.current():
        yield driver


def launch(function: int, pointer: int) -> KernelLaunch:
    return KernelLaunch(
        function=function,
        grid=(1, 1, 1),
        block_threads=32,
        shared_bytes=0,
        cluster=1,
        pdl=False,
        arguments=np.zeros(8, np.uint8),
        offsets=(0,),
        pointers=(pointer,),
        label="node x",
    )


def captured(driver: NullDriver, pointer: int) -> int:
    function = driver.function(driver.load_module(b"x", "x.cubin"), "x", 0)
    driver.begin_capture()
    driver.launch(launch(function, pointer))
    return driver.end_capture()


def test_bytes_go_in_and_out(driver: NullDriver) -> None:
    address = driver.allocate(1000, "test")
    result = np.zeros(10, np.uint8)
    driver.copy_to_host(result, address)
    assert (result == 0xFF).all()
    driver.copy_to_device(address + 990, np.arange(10, dtype=np.uint8))
    driver.copy_to_host(result, address + 990)
    assert result.tolist() == list(range(10))
    driver.fill(address, 7, 1000)
    driver.copy_to_host(result, address)
    assert (result == 7).all()
    assert [call.name for call in driver.calls][:3] == [
        "allocate",
        "copy_to_host",
        "copy_to_device",
    ]


BYTES = np.zeros(16, np.uint8)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda d, a: d.copy_to_device(a + 90, BYTES), "not inside a live allocation"),
        (lambda d, a: d.copy_to_device(a - 1, BYTES), "not inside a live allocation"),
        (lambda d, a: d.copy_to_host(BYTES.copy(), 1234), "not inside a live allocation"),
        (lambda d, a: d.fill(a, 0, 101), "not inside a live allocation"),
        (lambda d, a: (d.free(a), d.copy_to_device(a, BYTES)), "not inside a live allocation"),
        (lambda d, a: (d.free(a), d.free(a)), "which is not allocated"),
        (lambda d, a: d.free(a + 1), "which is not allocated"),
        (lambda d, a: [d.copy_to_device(a + k, BYTES) for k in (0, 8)], "overlaps an earlier"),
        (lambda d, a: d.allocate(1 << 60, "weights"), "can't allocate"),
        (lambda d, a: d.allocate(0, "nothing"), "can't allocate 0 bytes"),
        (lambda d, a: captured(d, a + 100), "pointer argument of node x"),
        (lambda d, a: d.launch(launch(1, a)), "launch outside a capture"),
        (lambda d, a: (d.begin_capture(), d.launch(launch(99, a))), "unloaded function"),
        (lambda d, a: (d.begin_capture(), d.allocate(1, "x")), "allocate during a capture"),
        (lambda d, a: (d.begin_capture(), d.synchronize()), "synchronize during a capture"),
        (lambda d, a: d.end_capture(), "was not begun"),
        (lambda d, a: d.launch_graph(55), "graph 55 does not exist"),
        (lambda d, a: d.function(77, "f", 0), "module 77 is not loaded"),
        (lambda d, a: d.unload_module(77), "module 77 is not loaded"),
        (lambda d, a: d.record_event(77), "event 77, which does not exist"),
        (lambda d, a: d.free_pinned(BYTES), "pinned memory that is not allocated"),
    ],
)
def test_a_mistake_is_refused(
    driver: NullDriver, act: Callable[[NullDriver, int], object], message: str
) -> None:
    address = driver.allocate(100, "test")
    with pytest.raises(DeviceError, match=message):
        act(driver, address)


def test_replay_after_free_is_refused(driver: NullDriver) -> None:
    address = driver.allocate(100, "test")
    graph = captured(driver, address)
    driver.launch_graph(graph)
    driver.free(address)
    with pytest.raises(DeviceError, match="pointer argument of node x"):
        driver.launch_graph(graph)


def test_copies_may_repeat_after_a_replay(driver: NullDriver) -> None:
    address = driver.allocate(100, "test")
    graph = captured(driver, address)
    for _ in range(2):
        driver.copy_to_device(address, BYTES)
        driver.launch_graph(graph)


def test_calls_need_a_current_device() -> None:
    driver = NullDriver(null_facts(90, 12080))
    with pytest.raises(DeviceError, match="allocate without the device being current"):
        driver.allocate(8, "test")
    driver.close()
    driver.close()
    with pytest.raises(DeviceError, match="used after close"), driver.current():
        pass


def test_is_empty_after_everything_is_freed(driver: NullDriver) -> None:
    assert driver.is_empty
    address = driver.allocate(100, "test")
    memory, event = driver.allocate_pinned(8), driver.create_event()
    assert not driver.is_empty
    driver.free(address)
    driver.free_pinned(memory)
    assert not driver.is_empty
    driver.destroy_event(event)
    assert driver.is_empty


def test_large_allocations_keep_no_contents(driver: NullDriver) -> None:
    address = driver.allocate(1 << 40, "weights")
    driver.copy_to_device(address, BYTES)
    with pytest.raises(DeviceError, match="too large to keep its contents"):
        driver.copy_to_host(BYTES.copy(), address)


def test_an_aborted_capture_leaves_the_driver_usable(driver: NullDriver) -> None:
    driver.begin_capture()
    driver.abort_capture()
    assert driver.allocate(8, "test")
