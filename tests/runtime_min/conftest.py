"""The small bundle of `bundles.py` as fixtures; each test gets a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime_min.bundles import write_bundle


@pytest.fixture
def bundle_folder(tmp_path: Path) -> Path:
    """A bundle without processing description."""
    return write_bundle(tmp_path / "toy.policy")


@pytest.fixture
def robot_bundle_folder(tmp_path: Path, oracles: Path) -> Path:
    """A bundle with processing description and tokenizer."""
    return write_bundle(tmp_path / "robot.policy", oracles / "tokenizer" / "tokenizer.model")
