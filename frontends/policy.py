"""What a model family hands to the compiler, and what the user may decide about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from policyc.compiler.ir.types import Array
from policyc.frontends.adapter import ModelSpec
from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.processing_description import ProcessingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The user's decisions; None means as the checkpoint or its layout's own code says.

    Attributes:
        processing: views, prompt slots, horizon, cameras, tokenizer and the like.
        steps: steps of the solver.
        statistics: id of the normalisation statistics.
        rounded_rope: round rotary frequencies to bfloat16.
        is_float32: compile in float32, not bfloat16? Also decides the default of `rounded_rope`.
    """

    processing: ProcessingOptions = field(default_factory=ProcessingOptions)
    steps: int | None = None
    statistics: str | None = None
    rounded_rope: bool | None = None
    is_float32: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPolicy:
    """A checkpoint that was read, checked and found complete.

    Attributes:
        model: batch size -> the stages to trace.
        read_weight: a tensor of the checkpoint or a constant of the model, by its name in `model`.
        is_float32: are products computed in float32, not bfloat16?
        keep_float32: globs of module paths whose products stay in float32.
        processing: the value of `processing.json`; `processing_files`: name in the bundle ->
            source.
        settings: what was decided, for the manifest.
        golden_inputs: batch size -> an input of the model for golden vectors, from a fixed seed.
        source_digests: SHA-256 of each file that was read.
        notes: lines for the user.
    """

    family: str
    layout: str
    model: Callable[[int], ModelSpec]
    read_weight: Callable[[str], Array]
    is_float32: bool
    keep_float32: tuple[str, ...]
    processing: Mapping[str, object]
    processing_files: Mapping[str, Path]
    settings: Mapping[str, object]
    golden_inputs: Callable[[int], dict[str, Array]]
    source_digests: Callable[[], dict[str, str]]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model family: its name, what it is, how to know and how to prepare its checkpoints."""

    name: str
    description: str
    layouts: tuple[str, ...]
    is_family_of: Callable[[Checkpoint], bool]
    prepare: Callable[[Checkpoint, PolicyOptions], PreparedPolicy]
