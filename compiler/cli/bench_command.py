"""`policyc bench`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from policyc.compiler.bench import BenchOptions, bench_bundle, write_receipt
from policyc.compiler.cli.archives import read_observation
from policyc.compiler.cli.console import print_json, print_result, progress
from policyc.compiler.cli.tables import receipt_table, setup_table


def bench(
    bundle: Annotated[Path, typer.Argument(help="The bundle, NAME.policy.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda:0, ...")] = "auto",
    calls: Annotated[int, typer.Option("--calls", "-n", min=1, help="Timed calls.")] = 200,
    warmup: Annotated[int, typer.Option(min=1, help="Calls before the timed ones.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of pictures and noise.")] = 0,
    observation: Annotated[Path | None, typer.Option(help="OBS.npz instead of made-up.")] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write setup and figures here.")] = None,
    load: Annotated[bool, typer.Option("--load", help="Time loading and the first call.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON.")] = False,
) -> None:
    """Measure latency: graph replay, network inputs to actions, raw observation to actions."""
    given = None if observation is None else read_observation(observation).observation
    options = BenchOptions(
        device=device, calls=calls, warmup=warmup, seed=seed, observation=given, load=load
    )
    with progress(f"measuring {bundle} on {device}"):
        measured = bench_bundle(bundle, options)
    if receipt is not None:
        write_receipt(receipt, measured)
    if json:
        print_json(asdict(measured))
    else:
        print_result(setup_table(measured.setup))
        print_result(receipt_table(measured))
