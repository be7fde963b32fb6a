"""Whole synthetic checkpoint folders: weights, config, statistics and tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from policyc.compiler.events import Event, Report
from policyc.compiler.synth.dimensions import SIZES, Dimensions
from policyc.compiler.synth.processors import write_lerobot_processors
from policyc.compiler.synth.statistics import openpi_statistics
from policyc.compiler.synth.tensors import (
    EMBEDDING,
    LM_HEAD,
    TensorSpec,
    lerobot_tensors,
    openpi_tensors,
)
from policyc.compiler.synth.values import write_random_tensors

LAYOUTS = ("openpi", "lerobot")
ASSET_ID = "synthetic_arm"


class SynthesisError(Exception):
    """A synthetic checkpoint was asked for that cannot be made: the user's mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisOptions:
    """What to make.

    Args:
        output: folder to create; must not exist.
        layout: `openpi` or `lerobot`.
        size: a key of `SIZES`.
        seed: decides every value.
        shards: number of weight files.
    """

    output: Path
    layout: str = "openpi"
    size: str = "tiny"
    seed: int = 0
    shards: int = 1


def synthesise(options: SynthesisOptions, report: Report) -> None:
    """Write a random pi0.5 checkpoint; the same options give the same bytes on any machine.

    Raises:
        SynthesisError: on an unknown layout or size, a bad shard count, or an output that exists.
    """
    _check(options)
    dimensions = SIZES[options.size]
    aside = options.output.with_name(options.output.name + ".partial")
    if aside.exists():
        shutil.rmtree(aside)
    aside.mkdir(parents=True)
    tensors = _LAYOUT_TENSORS[options.layout](dimensions)
    _write_weights(aside, tensors, options, report)
    if options.layout == "openpi":
        _write_openpi_files(aside, dimensions, options.seed)
    else:
        write_lerobot_processors(aside, dimensions, options.seed)
    aside.rename(options.output)
    report(Event(kind="write", text=f"{options.output}"))


_LAYOUT_TENSORS = {"openpi": openpi_tensors, "lerobot": lerobot_tensors}


def _check(options: SynthesisOptions) -> None:
    if options.layout not in LAYOUTS:
        raise SynthesisError(f"unknown layout {options.layout!r}; known: {', '.join(LAYOUTS)}.")
    if options.size not in SIZES:
        raise SynthesisError(f"unknown size {options.size!r}; known: {', '.join(SIZES)}.")
    if not 1 <= options.shards <= 999:
        raise SynthesisError(f"shards must be 1 to 999, got {options.shards}.")
    if options.output.exists():
        raise SynthesisError(f"{options.output} exists. Remove it or name another folder.")


def _write_weights(
    folder: Path, tensors: Sequence[TensorSpec], options: SynthesisOptions, report: Report
) -> None:
    metadata = {"format": "pt"} if options.layout == "lerobot" else {EMBEDDING: LM_HEAD}
    shards = split_evenly(tensors, options.shards)
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        size = sum(spec.size_bytes for spec in shard)
        report(Event(kind="write", text=f"{name}: {len(shard)} tensors, {size / 1e6:.1f} MB"))
        write_random_tensors(folder / name, shard, options.seed, metadata)
        index |= {spec.name: name for spec in shard}
    if len(shards) > 1:
        total = sum(spec.size_bytes for spec in tensors)
        content = {"metadata": {"total_size": total}, "weight_map": index}
        _write_json(folder / "model.safetensors.index.json", content)


def split_evenly(tensors: Sequence[TensorSpec], count: int) -> list[list[TensorSpec]]:
    """At most `count` runs of consecutive tensors, none empty, of about the same size in bytes."""
    total = sum(spec.size_bytes for spec in tensors)
    shards: list[list[TensorSpec]] = [[] for _ in range(count)]
    before = 0
    for spec in tensors:
        shards[min(before * count // total, count - 1)].append(spec)
        before += spec.size_bytes
    return [shard for shard in shards if shard]


def _write_openpi_files(folder: Path, dimensions: Dimensions, seed: int) -> None:
    config = {
        "action_dim": dimensions.action_width,
        "action_horizon": dimensions.horizon,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "precision": "bfloat16",
    }
    _write_json(folder / "config.json", config)
    assets = folder / "assets" / ASSET_ID
    assets.mkdir(parents=True)
    _write_json(assets / "norm_stats.json", openpi_statistics(dimensions, seed))
    tokenizer = files("policyc.compiler.synth").joinpath("tokenizer", "tokenizer.model")
    (folder / "tokenizer.model").write_bytes(tokenizer.read_bytes())


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
