"""The command line: its commands, and the one place where errors end."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from policyc import __version__
from policyc.compiler.cli.bench_command import bench
from policyc.compiler.cli.compile_command import compile_command
from policyc.compiler.cli.explain_command import explain as explain_choices
from policyc.compiler.cli.inspect_command import inspect
from policyc.compiler.cli.list_commands import models, targets
from policyc.compiler.cli.run_command import run_command
from policyc.compiler.cli.synth_command import synth
from policyc.compiler.cli.tune_command import tune
from policyc.compiler.cli.verify_command import verify
from policyc.compiler.exit_codes import ExitCode, exit_code, missing_extra

# typer carries a click of its own in some releases, so the class is taken from a public subclass.
_USAGE_ERROR: Any = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"policyc {__version__}")
        raise typer.Exit


def _main(
    version: bool = typer.Option(  # noqa: ARG001
        False, "--version", help="Print the version.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Compile robot policies ahead of time, and run, check and measure what was compiled."""


def build_app() -> typer.Typer:
    """The application with all commands."""
    app = typer.Typer(
        name="policyc", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback()(_main)
    app.command("compile")(compile_command)
    app.command("inspect")(inspect)
    app.command("verify")(verify)
    app.command("explain")(explain_choices)
    app.command("run")(run_command)
    app.command("bench")(bench)
    app.command("tune")(tune)
    app.command("synth")(synth)
    app.command("targets")(targets)
    app.command("models")(models)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; no error leaves as an exception."""
    command = typer.main.get_command(build_app())
    try:
        result = command.main(args=list(arguments), prog_name="policyc", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the command line's top level
        return explain(error)
    return result if isinstance(result, int) else ExitCode.OK


def explain(error: Exception) -> int:
    """Print an error to stderr: a user's mistake in its own words, a bug with its traceback."""
    if isinstance(error, _USAGE_ERROR):
        error.show()
        return ExitCode.USAGE
    code = exit_code(error)
    if code is ExitCode.INTERNAL:
        traceback.print_exception(error, file=sys.stderr)
        typer.echo(
            f"{type(error).__name__}: this is a bug in policyc {__version__}, not a mistake of "
            "yours. Please report it with the lines above (docs/exit-codes.md).",
            err=True,
        )
    elif isinstance(error, ModuleNotFoundError):
        extra = missing_extra(error)
        typer.echo(
            f"error: this needs the package {error.name}, which is not installed. "
            f'Install it with: pip install "policyc[{extra}]"',
            err=True,
        )
    else:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
    return code
