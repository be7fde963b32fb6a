"""What the commands print: results to stdout, progress to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markup import escape

from policyc.compiler.events import Event, Report


def print_result(result: RenderableType) -> None:
    """Print a table or text for people to stdout."""
    Console(highlight=False).print(result)


def print_json(value: object) -> None:
    """Print a value as JSON to stdout."""
    print(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))  # noqa: T201


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """A function to report events to: a line each on stderr, and a spinner on a terminal."""
    console = Console(stderr=True, highlight=False)
    with console.status(escape(title)) as status:

        def report(event: Event) -> None:
            seconds = "" if event.seconds is None else f"  {event.seconds:.2f} s"
            console.print(escape(f"{event.kind:>8}  {event.text}{seconds}"), soft_wrap=True)
            status.update(escape(f"{title}: after {event.text}"))

        yield report
