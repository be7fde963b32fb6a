"""Fixtures of the kernel tests: an interpreting process and a cache folder of the session's own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from policyc.compiler.ir.types import Array
from policyc.kernels.spec import KernelCall
from tests.kernels.cases import Run
from tests.kernels.execution import interpret_triton, run_interpreted


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Run]:
    """Runs kernel calls by Triton's interpreter, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=interpret_triton) as pool:

        def run(calls: tuple[KernelCall, ...], buffers: dict[str, Array]) -> dict[str, Array]:
            return pool.submit(run_interpreted, calls, buffers).result(timeout=120)

        yield run


@pytest.fixture(autouse=True)
def triton_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile into a folder of this session, never into the user's cache."""
    folder = tmp_path_factory.getbasetemp() / "triton-cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
