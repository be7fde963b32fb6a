from __future__ import annotations

import numpy as np
import pytest

from policyc.runtime_min.driver_interface import KernelLaunch
from policyc.runtime_min.errors import DeviceError
from policyc.runtime_min.graph_timing import capture_graph, time_replays
from policyc.runtime_min.null_driver import NullDriver, null_facts


def launch(function: int) -> KernelLaunch:
    return KernelLaunch(
        function=function,
        grid=(1, 1, 1),
        block_threads=32,
        shared_bytes=0,
        cluster=1,
        pdl=False,
        arguments=np.zeros(8, np.uint8),
        offsets=(0,),
        pointers=(),
        label="a launch",
    )


def test_graphs_take_turns_and_events_are_freed() -> None:
    driver = NullDriver(null_facts(90, 12080), launch_us=2.0)
    with driver.current():
        module = driver.load_module(b"code", "a.cubin")
        function = driver.function(module, "entry", 0)
        short = capture_graph(driver, [launch(function)])
        long = capture_graph(driver, [launch(function)] * 3)
        assert time_replays(driver, (short, long), 2) == ((2.0, 2.0), (6.0, 6.0))
        replayed = [call.details[0] for call in driver.calls if call.name == "launch_graph"]
        assert replayed == [short, long, short, long]
        driver.destroy_graph(short)
        driver.destroy_graph(long)
        driver.unload_module(module)
    assert driver.is_empty


def test_a_failed_capture_is_ended() -> None:
    driver = NullDriver(null_facts(90, 12080))
    with driver.current():
        with pytest.raises(DeviceError, match="unloaded function"):
            capture_graph(driver, [launch(5)])
        driver.synchronize()
    assert driver.calls[-2].name == "abort_capture" and driver.is_empty
