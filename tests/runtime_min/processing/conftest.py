"""A bundle folder's processing part, written and loaded as the runtime does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policyc.runtime_min.processing import Processing
from tests.runtime_min.processing.descriptions import SLOTS, Description, openpi_description

Load = Callable[[Description, Path], Processing]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write a description and a tokenizer file into a folder, and load it."""

    def load_from(description: Description, tokenizer: Path) -> Processing:
        (tmp_path / "processing.json").write_text(json.dumps(description))
        shutil.copy(tokenizer, tmp_path / description["prompt"]["tokenizer"]["file"])
        return Processing.load(tmp_path)

    return load_from


@pytest.fixture
def description(oracles: Path) -> Description:
    """The tiny openpi policy: three 56 x 56 cameras, state 8, actions 7 of 32."""
    return openpi_description(oracles / "pi05_fp32" / "openpi", 56, 64, 10)


@pytest.fixture
def tokenizer(oracles: Path) -> Path:
    return oracles / "pi05_fp32" / "openpi" / "tokenizer.model"


@pytest.fixture
def processing(load: Load, description: Description, tokenizer: Path) -> Processing:
    return load(description, tokenizer)


@pytest.fixture
def observation() -> dict[str, Any]:
    """A valid observation: three noisy 56 x 56 pictures, eight state entries, a prompt."""
    generator = np.random.default_rng(7)
    pictures = generator.integers(0, 256, (3, 56, 56, 3), dtype=np.uint8)
    return {
        "images": dict(zip(SLOTS, pictures, strict=True)),
        "state": generator.standard_normal(8).astype(np.float32),
        "prompt": "pick up the cup",
    }
