"""Fixtures for all tests: where the official fixtures lie, and whether there is a GPU."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import pytest

from tests.compiled import CompiledBundles

REPOSITORY = Path(__file__).parents[1]
SHARED = REPOSITORY.parent / "shared"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def oracles() -> Path:
    """Folder of the official fixtures, `../shared/oracles` beside the checkout."""
    folder = SHARED / "oracles"
    if not folder.is_dir():
        pytest.skip(f"official fixtures are not at {folder}")
    return folder


@pytest.fixture(scope="session")
def small_policy() -> Path:
    """Folder of the small trained policy, committed under `artifacts/`."""
    return REPOSITORY / "artifacts" / "policies" / "metaworld_pi05_small"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledBundles:
    """Compiles bundles, each once for all tests and workers."""
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent
    bundles = folder / "compiled"
    bundles.mkdir(exist_ok=True)
    return CompiledBundles(folder=bundles, cache=REPOSITORY / ".cache" / "kernels")


@cache
def missing_gpu() -> str:
    """Why GPU tests cannot run here; empty where they can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver: {error}"
    status = driver.cuInit(0)
    return f"cuInit returned {status}" if status else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := missing_gpu()):
        pytest.skip(reason)
