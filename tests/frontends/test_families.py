from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.errors import CheckpointError
from policyc.frontends.families import FAMILIES, family_of


@pytest.mark.parametrize("fixture", ["pi05_fp32/openpi", "pi05_lerobot/lerobot"])
def test_known_checkpoints(oracles: Path, fixture: str) -> None:
    family = family_of(Checkpoint.open(oracles / fixture))
    assert family.name == "pi05" and family in FAMILIES
    assert Checkpoint.open(oracles / fixture).layout in family.layouts


def test_unknown_family_lists_the_known_ones(tmp_path: Path) -> None:
    """Case 16, case 17: another family's checkpoint is refused before its weights are read."""
    config = {"type": "act", "input_features": {}, "output_features": {}, "chunk_size": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file({"w": np.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no known model family. Known: pi05 \(pi0.5 of"):
        family_of(Checkpoint.open(tmp_path))


def test_names_are_unique() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names)) and all(names)
