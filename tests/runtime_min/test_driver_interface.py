from __future__ import annotations

import inspect

import pytest

from policyc.runtime_min.driver import CudaDriver
from policyc.runtime_min.driver_interface import Driver
from policyc.runtime_min.null_driver import NullDriver

METHODS = sorted(name for name in vars(Driver) if not name.startswith("_") and name != "facts")


@pytest.mark.parametrize("kind", [CudaDriver, NullDriver])
@pytest.mark.parametrize("name", METHODS)
def test_both_drivers_have_the_same_calls(kind: type, name: str) -> None:
    expected = inspect.signature(vars(Driver)[name]).parameters
    assert list(inspect.signature(getattr(kind, name)).parameters) == list(expected)


def test_the_interface_is_not_empty() -> None:
    assert {"allocate", "launch", "launch_graph", "close"} <= set(METHODS)
