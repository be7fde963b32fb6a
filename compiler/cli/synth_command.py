"""`policyc synth`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from policyc.compiler.cli.console import progress
from policyc.compiler.synth import SynthesisOptions, synthesise


class Family(Enum):
    """Model families with a synthetic checkpoint."""

    PI05 = "pi05"


def synth(
    family: Annotated[Family, typer.Argument(help="Model family.")],  # noqa: ARG001
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to create.")],
    layout: Annotated[str, typer.Option(help="openpi or lerobot.")] = "openpi",
    size: Annotated[str, typer.Option(help="full (7 to 8 GB) or tiny.")] = "tiny",
    seed: Annotated[int, typer.Option(help="Decides every value.")] = 0,
    shards: Annotated[int, typer.Option(help="Number of weight files.")] = 1,
) -> None:
    """Write a random checkpoint in a public layout: for trials and measurements, not for robots."""
    options = SynthesisOptions(output=output, layout=layout, size=size, seed=seed, shards=shards)
    with progress(f"writing {output}") as report:
        synthesise(options, report)
