from __future__ import annotations

import inspect

import pytest

from policyc.runtime_min import errors


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.BundleVersionError, errors.BundleError),
        (errors.PlanError, errors.BundleError),
        (errors.IncompatibleDeviceError, errors.DeviceError),
        (errors.DeviceMemoryError, errors.DeviceError),
        (errors.ObservationError, errors.InputError),
        (errors.InputError, ValueError),
    ],
)
def test_a_caller_can_catch_the_family(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)


def test_every_error_is_a_policy_error() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert all(issubclass(kind, errors.PolicyError) for kind in kinds)
    assert len(kinds) > 8


def test_user_mistakes_and_device_faults_are_different_families() -> None:
    assert not issubclass(errors.DeviceError, errors.BundleError)
    assert not issubclass(errors.NonFiniteActions, errors.DeviceError)
