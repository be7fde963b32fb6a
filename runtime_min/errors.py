"""Errors of the runtime.

Every message says what, where, what was expected, what was found and what to do.
"""

from __future__ import annotations


class PolicyError(Exception):
    """Base of everything that the runtime raises on purpose."""


class BundleError(PolicyError):
    """The bundle is damaged, incomplete, unsafe, or does not follow the format."""


class BundleVersionError(BundleError):
    """The bundle's format version or a required feature is not one that this runtime reads."""


class PlanError(BundleError):
    """A plan in the bundle breaks a rule of the plan format."""


class DeviceError(PolicyError):
    """A device is missing, or a call to its driver failed."""


class IncompatibleDeviceError(DeviceError):
    """The bundle has no machine code for this device, or needs a newer driver.

    Nothing was allocated.
    """


class DeviceMemoryError(DeviceError):
    """The device has too little free memory for the bundle. Nothing was allocated."""


class InputError(PolicyError, ValueError):
    """An observation, tensor, noise array or output name does not fit the policy's signature."""


class ObservationError(InputError):
    """An observation does not follow the layout that the bundle declares."""


class NonFiniteActions(PolicyError):
    """The policy computed NaN or infinity; there are no actions to return."""


class PolicyClosed(PolicyError):
    """The policy was used after `close()`."""
