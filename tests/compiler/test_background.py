from __future__ import annotations

import threading

import numpy as np
import pytest

from policyc.compiler.background import Stopped, background


def test_a_task_runs_beside_the_caller_and_is_timed() -> None:
    go = threading.Event()
    with background() as threads:
        future = threads.start(lambda: go.wait(10.0))
        assert not future.done()
        go.set()
        assert future.result().value is True and future.result().seconds >= 0


def test_an_error_of_a_task_reaches_who_asks_for_its_result() -> None:
    with background() as threads:
        future = threads.start(lambda: {}["absent"])
        with pytest.raises(KeyError, match="absent"):
            future.result()


def test_an_error_in_the_block_stops_its_tasks() -> None:
    """A task that would go on for ever ends at the next weight that it reads."""
    reads = 0

    def endless() -> None:
        nonlocal reads
        while True:
            reads += 1
            read("w")

    with pytest.raises(ValueError, match="in the block"), background() as threads:
        read = threads.stoppable(lambda name: np.zeros(1))
        future = threads.start(endless)
        raise ValueError("in the block")
    assert reads >= 1 or future.cancelled()
    if not future.cancelled():
        with pytest.raises(Stopped):
            future.result()


def test_without_an_error_a_reader_reads() -> None:
    with background() as threads:
        read = threads.stoppable(lambda name: np.full(1, len(name)))
        assert threads.start(lambda: read("abc")).result().value.tolist() == [3]
