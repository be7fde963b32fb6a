"""Small pi0.5 checkpoints for tests, as variations of the official fixtures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import safetensors.numpy

from policyc.compiler.ir.types import Array

Tensors = dict[str, Array]


def official_tensors(oracles: Path, fixture: str = "pi05_fp32/openpi") -> Tensors:
    """The tensors of a fixture, read by the official library."""
    return safetensors.numpy.load_file(oracles / fixture / "model.safetensors")


def write_checkpoint(
    folder: Path, oracles: Path, tensors: Tensors, fixture: str = "pi05_fp32/openpi"
) -> Path:
    """A folder with the fixture's other files and these tensors in `model.safetensors`."""
    source = oracles / fixture
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def write_shards(folder: Path, shards: dict[str, Tensors]) -> None:
    """Shards by file name, and the index that names them."""
    weight_map = {}
    for file, tensors in shards.items():
        safetensors.numpy.save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    write_index(folder, weight_map)


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)
