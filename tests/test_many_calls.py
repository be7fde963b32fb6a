"""Many calls in one process: nothing is kept of any of them."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from policyc.runtime_min.device_executor import DeviceExecutor
from policyc.runtime_min.errors import InputError
from policyc.runtime_min.null_driver import NullDriver
from policyc.runtime_min.policy import Policy
from tests.runtime_min.bundles import observation, tensors, write_bundle

CALLS = 300
KEPT_LIMIT_BYTES = 20_000
"""Far less than one input of each call would be."""


def call(policy: Policy, number: int) -> None:
    """One accepted and one rejected call."""
    policy.run_for_comparison(tensors(1, seed=number), ("actions",))
    with pytest.raises(InputError):
        policy.run({**tensors(1), "noise": np.zeros((1, 1, 1), np.float32)})
    with pytest.raises(InputError):
        policy.infer({**observation(), "state": [np.nan, 0.0]})
    if isinstance(policy.executor, DeviceExecutor):
        driver = policy.executor.driver
        assert isinstance(driver, NullDriver)
        driver.calls.clear()


@pytest.mark.parametrize("device", ["cpu", "null"])
def test_calls_leave_no_memory_behind(oracles: Path, tmp_path: Path, device: str) -> None:
    """Case 72: on the CPU, and in the host part of a GPU's executor."""
    folder = write_bundle(tmp_path / "a.policy", oracles / "tokenizer" / "tokenizer.model")
    with Policy.load(folder, device) as policy:
        for number in range(20):
            call(policy, number)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(CALLS):
            call(policy, number)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert after - before < KEPT_LIMIT_BYTES
