"""Compiles kernels to machine code in parallel processes, cached by content."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

from policyc.backends.elf import kernel_parameters
from policyc.backends.errors import CubinError
from policyc.backends.kernel_cache import CompiledKernel, KernelCache, TensorMapLayout
from policyc.backends.source import KernelSource
from policyc.backends.toolchain import Toolchain
from policyc.backends.worker import Product, Task, compile_kernel, kernel_function

Watch = Callable[[str], None]


def compile_kernels(
    sources: Mapping[str, KernelSource],
    compute_capability: int,
    toolchain: Toolchain,
    cache: Path | None = None,
    watch: Watch | None = None,
    faults: dict[str, str] | None = None,
) -> dict[str, CompiledKernel]:
    """Machine code of every source, by kernel id.

    The bytes depend on source, target and tools alone, not on folders, time or order.

    Args:
        sources: what to compile, by kernel id.
        compute_capability: 90 for 9.0.
        toolchain: of `check_toolchain`; part of the cache's keys.
        cache: folder of the cache; the user's cache folder if None.
        watch: called with the id of each kernel when it is there.
        faults: if given, takes the reason of each kernel that cannot be had, and the result lacks
            it; nothing is raised.

    Raises:
        CubinError: a kernel did not compile, its compiler crashed, or its parameters are not those
            that the plan would pass; names the kernel.
    """
    store = KernelCache(cache if cache is not None else default_cache_folder())
    with tempfile.TemporaryDirectory(prefix="policyc-kernels-") as name:
        folder = Path(name)
        keys: dict[str, str] = {}
        found: dict[str, CompiledKernel] = {}
        for kernel_id, source in sources.items():
            key = cache_key(store, source, compute_capability, toolchain, folder)
            keys[kernel_id] = key
            if (kernel := store.read(key)) is not None:
                found[kernel_id] = kernel
                _tell(watch, kernel_id)
        tasks = {
            kernel_id: Task(source=source, compute_capability=compute_capability, folder=folder)
            for kernel_id, source in sources.items()
            if kernel_id not in found
        }
        for kernel_id, product in _compiled(tasks):
            try:
                kernel = _checked(kernel_id, sources[kernel_id], product)
            except CubinError as error:
                if faults is None:
                    raise
                faults[kernel_id] = str(error)
                continue
            store.write(keys[kernel_id], kernel)
            found[kernel_id] = kernel
            _tell(watch, kernel_id)
    return {kernel_id: found[kernel_id] for kernel_id in sources if kernel_id in found}


def cache_key(
    store: KernelCache,
    source: KernelSource,
    compute_capability: int,
    toolchain: Toolchain,
    folder: Path,
) -> str:
    """What decides the machine code; the function's own key covers the functions that it calls."""
    function_key = kernel_function(source, folder).cache_key
    tools = (toolchain.triton, toolchain.ptxas[compute_capability])
    return store.key(function_key, source.text, str(compute_capability), *tools)


def default_cache_folder() -> Path:
    """The user's cache of compiled kernels."""
    return Path.home() / ".cache" / "policyc" / "kernels"


def _tell(watch: Watch | None, kernel_id: str) -> None:
    if watch is not None:
        watch(kernel_id)


def _compiled(tasks: Mapping[str, Task]) -> Iterator[tuple[str, Product | CubinError]]:
    """The product of every task, or what went wrong, as they come.

    A crash takes all workers with it. Tasks start in order, so the first that are left were in the
    workers' hands; they are tried one by one, to name the one that crashed, and the rest together.
    """
    left = dict(tasks)
    while left:
        workers = min(os.cpu_count() or 1, len(left))
        with _pool(workers) as pool:
            names = {pool.submit(compile_kernel, task): name for name, task in left.items()}
            for future in as_completed(names):
                if isinstance(future.exception(), BrokenProcessPool):
                    break
                name = names[future]
                yield name, _result(name, left.pop(name), future)
        # The pool hands out one task more than it has workers.
        for name in list(left)[: 2 * workers + 1]:
            with _pool(1) as pool:
                task = left.pop(name)
                yield name, _result(name, task, pool.submit(compile_kernel, task))


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes; on an error, what has not started is dropped."""
    # Spawned: a forked child inherits the threads' locks of torch and LLVM.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(max_workers=workers, mp_context=context)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _result(name: str, task: Task, future: Future[Product]) -> Product | CubinError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenProcessPool):
        reason = "the compiler's process ended by itself"
    else:
        reason = f"{type(error).__name__}: {error}"
    fault = CubinError(
        f"kernel {name} ({task.source.kernel}) did not compile for compute capability "
        f"{task.compute_capability}: {reason}\n  constants: {dict(task.source.constants)}"
        f"\n  signature: {dict(task.source.signature)}"
    )
    fault.__cause__ = error
    return fault


def _checked(name: str, source: KernelSource, product: Product | CubinError) -> CompiledKernel:
    """The product with the parameters of its machine code, compared with the expected."""
    if isinstance(product, CubinError):
        raise product
    parameters = kernel_parameters(product.cubin, product.entry)
    sizes = tuple(size for _, size in parameters)
    if sizes != source.parameter_sizes:
        raise CubinError(
            f"kernel {name}: the machine code has parameters of {sizes} bytes, expected "
            f"{source.parameter_sizes} from {dict(source.signature)}. This release of Triton "
            "passes arguments in another way."
        )
    return CompiledKernel(
        cubin=product.cubin,
        entry=product.entry,
        shared_bytes=product.shared_bytes,
        block_threads=product.block_threads,
        pdl=source.pdl,
        parameters=parameters,
        tensor_maps=tuple(
            TensorMapLayout(box=box, swizzle=swizzle, element_type=element_type)
            for box, swizzle, element_type in product.tensor_maps
        ),
    )
