"""`policyc tune`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from policyc.backends.cubin import compile_kernels
from policyc.backends.kernel_cache import CompiledKernel
from policyc.backends.source import KernelSource
from policyc.backends.toolchain import check_toolchain
from policyc.compiler.bench import UNKNOWN, device_facts
from policyc.compiler.cli.console import print_result, progress
from policyc.compiler.cli.cost_tables import tuning_table
from policyc.compiler.events import Event, Report
from policyc.compiler.exit_codes import ExitCode
from policyc.compiler.options import OptionError
from policyc.compiler.tune import Tuner, TuneReport, choices_of, remarks_of, tune_bundle
from policyc.profiles.choices import file_text, merge_choices
from policyc.profiles.loader import load_profile
from policyc.profiles.profile import Profile
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.driver import CudaDriver
from policyc.runtime_min.driver_interface import Driver

_TOLD_EVERY = 50
"""Compiled kernels between two lines of progress."""


def tune(
    bundle: Annotated[Path, typer.Argument(help="The bundle, NAME.policy.")],
    target: Annotated[str, typer.Option(help="The profile of the GPU at hand.")],
    device: Annotated[str, typer.Option(help="cuda:0, ...")] = "cuda:0",
    only: Annotated[str, typer.Option(help="Problems that contain this text.")] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Of measuring, at most.")] = 600,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="CHOICES.toml.")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Put into the target's profile.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder for compiled kernels.")] = None,
) -> None:
    """Measure the kernel candidates of a bundle on the GPU at hand, and write the choices."""
    if output is None and not merge:
        raise OptionError("where do the choices go? Give -o CHOICES.toml, --merge, or both.")
    profile = load_profile(target)
    opened = Bundle.open(bundle)
    with progress(f"tuning {bundle} on {device}") as report:
        tuner = Tuner(
            profile=profile,
            open_driver=_opener(device),
            compile=_compiler(profile, cache, report),
            facts=lambda: _facts(device),
            report=report,
            seconds=seconds,
            today=datetime.datetime.now(datetime.UTC).date(),
        )
        measured = tune_bundle(opened, tuner, only)
    print_result(tuning_table(measured))
    _store(measured, output, merge)
    if measured.stopped or any(item.winner is None for item in measured.problems):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _store(measured: TuneReport, output: Path | None, merge: bool) -> None:
    choices = choices_of(measured)
    if output is not None:
        aside = output.with_name(output.name + ".partial")
        aside.write_text(file_text(measured.target, choices, remarks_of(measured)), "utf-8")
        aside.replace(output)
    if merge:
        merge_choices(measured.target, choices)


def _opener(device: str) -> Callable[[], Driver]:
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isdecimal():
        raise OptionError(f"device: expected cuda:N, got {device!r}; only GPUs are tuned.")
    return lambda: CudaDriver(int(number))


def _compiler(
    profile: Profile, cache: Path | None, report: Report
) -> Callable[[Mapping[str, KernelSource]], Mapping[str, CompiledKernel | str]]:
    capability = profile.compute_capability
    toolchain = check_toolchain([capability])

    def compile_all(sources: Mapping[str, KernelSource]) -> Mapping[str, CompiledKernel | str]:
        done: list[str] = []
        faults: dict[str, str] = {}

        def watch(name: str) -> None:
            done.append(name)
            if len(done) % _TOLD_EVERY == 0:
                report(Event(kind="kernel", text=f"{len(done)} of {len(sources)} kernels"))

        kernels = compile_kernels(sources, capability, toolchain, cache, watch, faults)
        return {**kernels, **faults}

    return compile_all


def _facts(device: str) -> tuple[str, str]:
    facts = device_facts(device)
    driver = facts["driver_version"]
    if driver == UNKNOWN:
        return UNKNOWN, UNKNOWN
    return driver, f"sm {facts['clocks_sm']}, memory {facts['clocks_mem']}"
