"""`policyc targets` and `policyc models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from policyc.compiler.cli.console import print_json, print_result
from policyc.compiler.cli.tables import models_table, targets_table
from policyc.compiler.describe import describe_targets
from policyc.compiler.models import MODELS


def targets(
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the devices that policyc can compile for."""
    rows = describe_targets()
    if json:
        print_json([asdict(row) for row in rows])
    else:
        print_result(targets_table(rows))


def models(
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the model families that policyc can compile."""
    if json:
        print_json([asdict(row) for row in MODELS])
    else:
        print_result(models_table(MODELS))
