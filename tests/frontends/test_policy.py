from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.families import family_of
from policyc.frontends.policy import PolicyOptions
from policyc.frontends.processing_description import ProcessingOptions


def test_nothing_is_decided_by_default() -> None:
    options = PolicyOptions()
    assert options.processing == ProcessingOptions()
    others = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    assert set(others.values()) <= {None, options.processing}


def test_records_cannot_be_changed(oracles: Path) -> None:
    checkpoint = Checkpoint.open(oracles / "pi05_fp32" / "openpi")
    prepared = family_of(checkpoint).prepare(checkpoint, PolicyOptions())
    with pytest.raises(dataclasses.FrozenInstanceError):
        prepared.family = "other"  # type: ignore[misc]
