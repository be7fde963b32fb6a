"""The small bundle's kernels in Python, for the null driver; they read the packed arguments."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from policyc.runtime_min.driver_interface import KernelLaunch
from policyc.runtime_min.null_driver import EmulatedKernel, NullDriver
from tests.runtime_min.bundles import EMBEDDING, VOCABULARY, WIDTH


def scalars(launch: KernelLaunch, form: str) -> tuple[float, ...]:
    """Parameters of a launch, one format character of `struct` each; `.` skips a parameter."""
    values: list[float] = []
    for offset, character in zip(launch.offsets, form, strict=False):
        if character != ".":
            data = launch.arguments[offset : offset + struct.calcsize(f"<{character}")]
            values.append(struct.unpack(f"<{character}", data.tobytes())[0])
    return tuple(values)


def _floats(driver: NullDriver, address: float, *shape: int) -> NDArray[np.float32]:
    size = int(np.prod(shape)) * 4
    return driver.memory(int(address), size).view(np.float32).reshape(shape)


def _embed_rows(driver: NullDriver, launch: KernelLaunch) -> None:
    tokens, table, result, count = scalars(launch, "QQQi")
    ids = driver.memory(int(tokens), int(count) * 4).view(np.int32)
    rows = driver.memory(int(table), VOCABULARY * EMBEDDING * 2).reshape(VOCABULARY, -1)
    driver.memory(int(result), int(count) * EMBEDDING * 2)[:] = rows[ids].ravel()


def _small_linear(driver: NullDriver, launch: KernelLaunch) -> None:
    noise, weight, hidden, rows = scalars(launch, "QQQi")
    x = _floats(driver, noise, int(rows), WIDTH)
    _floats(driver, hidden, int(rows), WIDTH)[:] = x @ _floats(driver, weight, WIDTH, WIDTH).T


def _add_scaled(driver: NullDriver, launch: KernelLaunch) -> None:
    base, rows, width, _, _, hidden, actions, scale = scalars(launch, "QiiqqQQf")
    shape = (int(rows), int(width))
    total = _floats(driver, base, *shape) + np.float32(scale) * _floats(driver, hidden, *shape)
    _floats(driver, actions, *shape)[:] = total


KERNELS: dict[str, EmulatedKernel] = {
    "embed_rows": _embed_rows,
    "small_linear": _small_linear,
    "add_scaled": _add_scaled,
}
