"""A bundle and an observation file for the commands, and a way to run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler.cli.app import run
from tests.runtime_min.bundles import observation, write_bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command line did."""

    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs a command line on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err or code == 70
        return Outcome(code=code, out=captured.out, err=captured.err)

    return call


@pytest.fixture
def robot_bundle(tmp_path: Path, oracles: Path) -> Path:
    """A small bundle with processing description, tokenizer and golden vectors."""
    return write_bundle(tmp_path / "robot.policy", oracles / "tokenizer" / "tokenizer.model")


@pytest.fixture
def observation_file(tmp_path: Path) -> Path:
    """An observation that fits `robot_bundle`, with noise."""
    given = observation()
    path = tmp_path / "observation.npz"
    images = {f"images.{name}": image for name, image in given["images"].items()}  # type: ignore[attr-defined]
    np.savez(
        path,
        state=given["state"],
        prompt=np.array(given["prompt"]),
        noise=np.ones((3, 4), np.float32),
        **images,
    )
    return path
