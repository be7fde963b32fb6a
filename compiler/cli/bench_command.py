"""`policyc bench`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from policyc.compiler.bench import BenchOptions, Receipt, bench_bundle, write_receipt
from policyc.compiler.cli.archives import read_observation
from policyc.compiler.cli.console import print_json, print_result, progress
from policyc.compiler.cli.cost_tables import launch_table, roofline_table, throughput_table
from policyc.compiler.cli.tables import receipt_table, setup_table
from policyc.compiler.options import OptionError
from policyc.compiler.roofline import draw_roofline, load_plotting


def bench(
    bundle: Annotated[Path, typer.Argument(help="The bundle, NAME.policy.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda:0, ...")] = "auto",
    calls: Annotated[int, typer.Option("--calls", "-n", min=1, help="Timed calls.")] = 200,
    warmup: Annotated[int, typer.Option(min=1, help="Calls before the timed ones.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of pictures and noise.")] = 0,
    observation: Annotated[Path | None, typer.Option(help="OBS.npz instead of made-up.")] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write setup and figures here.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Observations a call.")] = 1,
    prompt_valid: Annotated[
        int | None, typer.Option(min=1, help="Fill this many prompt slots.")
    ] = None,
    launches: Annotated[
        bool, typer.Option("--launches", help="What each kernel adds to a replay.")
    ] = False,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="What each stage achieves of its roof.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the roofline here, as PNG.")] = None,
    target: Annotated[str | None, typer.Option(help="Profile that gives the roof.")] = None,
    load: Annotated[bool, typer.Option("--load", help="Time loading and the first call.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON.")] = False,
) -> None:
    """Measure latency: graph replay, network inputs to actions, raw observation to actions."""
    given = None if observation is None else read_observation(observation).observation
    if plot is not None:
        if not roofline:
            raise OptionError("--plot draws the roofline; add --roofline.")
        load_plotting()
    options = BenchOptions(
        device=device,
        calls=calls,
        warmup=warmup,
        seed=seed,
        observation=given,
        prompt_valid=prompt_valid,
        load=load,
        batch=batch,
        launches=launches,
        roofline=roofline,
        target=target,
    )
    with progress(f"measuring {bundle} on {device}"):
        measured = bench_bundle(bundle, options)
    if receipt is not None:
        write_receipt(receipt, measured)
    if plot is not None and measured.roofline is not None:
        draw_roofline(plot, measured.roofline)
    if json:
        print_json(asdict(measured))
    else:
        _print(measured)


def _print(measured: Receipt) -> None:
    print_result(setup_table(measured.setup))
    print_result(receipt_table(measured))
    if measured.setup.batch > 1:
        print_result(throughput_table(measured))
    if measured.launches is not None:
        print_result(launch_table(measured.launches))
    if measured.roofline is not None:
        print_result(roofline_table(measured.roofline))
