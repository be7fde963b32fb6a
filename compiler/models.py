"""The model families that can be compiled, as data that needs no torch to read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """One family: `name` is its file below `frontends/`."""

    name: str
    title: str
    layouts: tuple[str, ...]
    precisions: tuple[str, ...]


MODELS = (
    ModelFamily(
        name="pi05",
        title="pi0.5 (vision-language-action, flow matching)",
        layouts=("openpi", "lerobot"),
        precisions=("bf16", "float32"),
    ),
)
