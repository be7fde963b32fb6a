"""Work that runs in threads beside the compile, and stops when the compile fails."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from policyc.compiler.ir.types import Array

T = TypeVar("T")


class Stopped(Exception):
    """Ends a task whose result nobody wants any more; it stays in the future, which nobody asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Generic[T]):
    """A result, and how long its making took."""

    value: T
    seconds: float


@dataclass(frozen=True, slots=True)
class Background:
    """Starts tasks; made by `background`."""

    _threads: ThreadPoolExecutor
    _stop: threading.Event

    def start(self, task: Callable[[], T]) -> Future[Timed[T]]:
        """Run the task beside the caller; the future raises what the task raises."""

        def timed() -> Timed[T]:
            started = time.perf_counter()
            return Timed(value=task(), seconds=time.perf_counter() - started)

        return self._threads.submit(timed)

    def stoppable(self, read: Callable[[str], Array]) -> Callable[[str], Array]:
        """The reader, for use in a task: it ends the task once the block is left by an error."""

        def checked(name: str) -> Array:
            if self._stop.is_set():
                raise Stopped(name)
            return read(name)

        return checked


@contextlib.contextmanager
def background() -> Iterator[Background]:
    """A block whose tasks are over when it is left; an error in it stops them early."""
    stop = threading.Event()
    threads = ThreadPoolExecutor(thread_name_prefix="policyc-background")
    try:
        yield Background(threads, stop)
    finally:
        stop.set()
        threads.shutdown(cancel_futures=True)
