"""`policyc explain`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from policyc.compiler.cli.console import print_json, print_result
from policyc.compiler.cli.cost_tables import explanation_table
from policyc.compiler.explain import explain_bundle
from policyc.runtime_min.bundle import Bundle


def explain(
    bundle: Annotated[Path, typer.Argument(help="The bundle, NAME.policy.")],
    target: Annotated[str | None, typer.Option(help="One of the bundle's targets.")] = None,
    batch: Annotated[int | None, typer.Option(help="One of its batch sizes.")] = None,
    problem: Annotated[str, typer.Option(help="Show problems that contain this text.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Print which kernels were chosen, why, and what was rejected. Needs no GPU."""
    opened = Bundle.open(bundle)
    rows = explain_bundle(opened, target, batch, problem)
    if json:
        print_json([{**asdict(row), "roof_share": row.roof_share} for row in rows])
    else:
        print_result(explanation_table(rows, target or opened.manifest.targets[0].name))
