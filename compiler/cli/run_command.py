"""`policyc run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from policyc.compiler.cli.archives import read_observation, write_arrays
from policyc.compiler.options import OptionError
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.policy import Policy
from policyc.runtime_min.processing import Processing


def run_command(
    bundle: Annotated[Path, typer.Argument(help="The bundle, NAME.policy.")],
    observation: Annotated[Path, typer.Option(help="Observation, OBS.npz.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Actions, ACTIONS.npz.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda:0, ...")] = "auto",
    seed: Annotated[int | None, typer.Option(help="Seed of the start noise.")] = None,
) -> None:
    """Compute the actions for one observation, in robot units."""
    given = read_observation(observation)
    if given.noise is not None and seed is not None:
        raise OptionError(f"{observation} holds noise; leave --seed out, or take the noise out.")
    names = Processing.load(Bundle.open(bundle).folder).description.actions.names
    policy = Policy.load(bundle, device=device)
    try:
        actions = policy.infer(given.observation, noise=given.noise, seed=seed)
    finally:
        policy.close()
    write_arrays(output, {"actions": actions, "names": np.array(names)})
    typer.echo(f"{output}: actions {actions.dtype} {list(actions.shape)}: {', '.join(names)}")
