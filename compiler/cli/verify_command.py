"""`policyc verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policyc.compiler.cli.console import print_json, print_result, progress
from policyc.compiler.cli.tables import verification_table
from policyc.compiler.exit_codes import ExitCode
from policyc.compiler.verify import verification_json, verify_bundle


def verify(
    bundle: Annotated[Path, typer.Argument(help="The bundle, NAME.policy.")],
    device: Annotated[str, typer.Option(help="cpu, cuda:0, ...")] = "cpu",
    structure_only: Annotated[
        bool, typer.Option("--structure-only", help="Check files and plans, compute nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Check a bundle: every digest, plans and graphs, then the golden vectors on a device.

    Ends with exit code 1 if a value is outside its tolerance.
    """
    with progress(f"verifying {bundle}") as report:
        verification = verify_bundle(bundle, None if structure_only else device, report)
    if json:
        print_json(verification_json(verification))
    else:
        print_result(verification_table(verification))
    if not verification.passed:
        raise typer.Exit(ExitCode.CHECK_FAILED)
