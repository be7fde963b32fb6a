from __future__ import annotations

import dataclasses

import pytest

from policyc.compiler.events import Event


def test_event_is_a_value() -> None:
    event = Event(kind="pass", text="fuse_norms", seconds=0.25)
    assert event == Event(kind="pass", text="fuse_norms", seconds=0.25)
    assert Event(kind="note", text="x").seconds is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.text = "other"  # type: ignore[misc]
