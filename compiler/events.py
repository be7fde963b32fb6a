"""What a long command tells its caller while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    Args:
        kind: what sort of step, one word: `read`, `trace`, `pass`, `kernel`, `write`, `note`.
        text: one line for people, without the time.
        seconds: how long the step took; None where there is nothing to time.
    """

    kind: str
    text: str
    seconds: float | None = None


Report = Callable[[Event], None]
