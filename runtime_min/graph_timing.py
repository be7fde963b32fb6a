"""Captures launches as a graph, and times replays of graphs by device events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from policyc.runtime_min.driver_interface import Driver, KernelLaunch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCosts:
    """Median microseconds of a whole replay, and what each group of launches adds to it."""

    total_us: float
    groups_us: Mapping[str, float]


def capture_graph(driver: Driver, launches: Sequence[KernelLaunch]) -> int:
    """The launches in order as one graph on the device; the caller destroys it."""
    with ExitStack() as undo:
        driver.begin_capture()
        undo.callback(driver.abort_capture)
        for launch in launches:
            driver.launch(launch)
        undo.pop_all()
    graph = driver.end_capture()
    with ExitStack() as undo:
        undo.callback(driver.destroy_graph, graph)
        driver.upload_graph(graph)
        undo.pop_all()
    return graph


def time_replays(
    driver: Driver, graphs: Sequence[int], count: int
) -> tuple[tuple[float, ...], ...]:
    """Microseconds of `count` replays of each graph; the graphs take turns.

    Turns spread a drift of the clocks over all graphs alike, so that differences between them keep
    their meaning.
    """
    with ExitStack() as events:
        marks: list[int] = []
        for _ in range(count * len(graphs) + 1):
            marks.append(driver.create_event())
            events.callback(driver.destroy_event, marks[-1])
        driver.record_event(marks[0])
        for index, mark in enumerate(marks[1:]):
            driver.launch_graph(graphs[index % len(graphs)])
            driver.record_event(mark)
        driver.synchronize()
        times = [driver.elapsed_us(a, b) for a, b in zip(marks[:-1], marks[1:], strict=True)]
    return tuple(tuple(times[index :: len(graphs)]) for index in range(len(graphs)))
