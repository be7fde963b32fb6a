"""`policyc inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policyc.compiler.cli.console import print_json, print_result
from policyc.compiler.cli.tables import bundle_table, kernels_table, launches_table
from policyc.compiler.describe import describe_bundle, to_json
from policyc.compiler.options import OptionError
from policyc.runtime_min.bundle import Bundle, graph_name


def inspect(
    bundle: Annotated[Path, typer.Argument(help="The bundle, NAME.policy.")],
    graph: Annotated[bool, typer.Option("--graph", help="Print the graph instead.")] = False,
    launches: Annotated[bool, typer.Option("--launches", help="List every launch.")] = False,
    batch: Annotated[int | None, typer.Option(help="Batch size to show.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Print what a bundle is: options, targets, kernels, memory. Needs no GPU."""
    opened = Bundle.open(bundle)
    buckets = opened.manifest.batch_buckets
    shown = buckets[0] if batch is None else batch
    if shown not in buckets:
        raise OptionError(
            f"no batch {shown} in {bundle}; compiled: {', '.join(map(str, buckets))}."
        )
    if graph:
        typer.echo(opened.read(graph_name(shown)).decode())
        return
    description = describe_bundle(opened)
    if json:
        print_json(to_json(description))
        return
    print_result(bundle_table(description))
    for plan in description.plans:
        if plan.batch == shown:
            print_result(kernels_table(plan))
    if launches:
        for capability in opened.manifest.compute_capabilities:
            print_result(launches_table(opened.plan(capability), shown))
