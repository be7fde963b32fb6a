"""`make demo`: compiles the small trained policy, checks the bundles, runs recorded observations.

Needs no GPU: the bundle for h100 gets machine code, and everything that runs here runs on the CPU.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from policyc.compiler.cli.archives import read_arrays
from policyc.compiler.cli.console import print_result, progress
from policyc.compiler.cli.tables import bundle_table, kernels_table, verification_table
from policyc.compiler.compile import compile_checkpoint
from policyc.compiler.describe import describe_bundle
from policyc.compiler.ir.types import Array
from policyc.compiler.options import CompileOptions, Precision
from policyc.compiler.verify import verify_bundle
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.policy import Policy

REPOSITORY = Path(__file__).resolve().parents[1]
POLICY = REPOSITORY / "artifacts" / "policies" / "metaworld_pi05_small"
OUTPUT = REPOSITORY / ".out" / "demo"
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb")
PROMPT_SLOTS = 48
OBSERVATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One bundle of the demo, and the official figure to hold it against.

    `official` is the key of the official actions in `demos.npz`, `yardstick` their largest error
    against float64 over all 40 observations, as the policy's README states it.
    """

    precision: Precision
    targets: tuple[str, ...]
    official: str
    yardstick: float

    @property
    def bundle(self) -> Path:
        return OUTPUT / f"metaworld-{self.precision.value}.policy"


RUNS = (
    Run(precision=Precision.BF16, targets=("cpu", "h100"), official="robot_bf16", yardstick=4.5e-2),
    Run(precision=Precision.FLOAT32, targets=("cpu",), official="robot_f32", yardstick=2.5e-4),
)


def main() -> int:
    """Run the demo; the exit code is 1 if a bundle fails its check."""
    if OUTPUT.exists():
        shutil.rmtree(OUTPUT)
    OUTPUT.mkdir(parents=True)
    demos = read_arrays(POLICY / "demos.npz")
    passed = [show_run(run, demos) for run in RUNS]
    return 0 if all(passed) else 1


def show_run(run: Run, demos: dict[str, Array]) -> bool:
    """Compile, describe, verify and run one bundle; says whether its check passed."""
    with progress(f"compiling for {', '.join(run.targets)} in {run.precision.value}") as report:
        compile_checkpoint(options_of(run), report)
    description = describe_bundle(Bundle.open(run.bundle))
    print_result(bundle_table(description))
    for plan in description.plans:
        print_result(kernels_table(plan))
    with progress(f"verifying {run.bundle.name}") as report:
        verification = verify_bundle(run.bundle, "cpu", report)
    print_result(verification_table(verification))
    for table in run_observations(run, demos):
        print_result(table)
    return verification.passed


def options_of(run: Run) -> CompileOptions:
    """The third camera of this checkpoint is always masked out, so two views are compiled."""
    return CompileOptions(
        checkpoint=POLICY / "openpi",
        output=run.bundle,
        targets=run.targets,
        precision=run.precision,
        views=len(CAMERAS),
        prompt_slots=PROMPT_SLOTS,
        dump=OUTPUT / f"passes-{run.precision.value}",
        cache=OUTPUT / "cache",
    )


def run_observations(run: Run, demos: dict[str, Array]) -> Sequence[Table]:
    """Recorded observations on the CPU: actions in robot units, and their distance from float64."""
    with Policy.load(run.bundle, device="cpu") as policy:
        computed = [
            policy.infer(observation_of(demos, index), noise=demos["noise"][index])
            for index in range(OBSERVATIONS)
        ]
    first = actions_table(str(demos["prompt"][0]), computed[0])
    return first, distance_table(run, demos, computed)


def observation_of(demos: dict[str, Array], index: int) -> dict[str, object]:
    """Observation `index` of `demos.npz` as `Policy.infer` takes it."""
    images = demos["images"][index]  # [2, 112, 112, 3]
    return {
        "images": dict(zip(CAMERAS, images, strict=True)),
        "state": demos["state"][index],
        "prompt": str(demos["prompt"][index]),
    }


def actions_table(prompt: str, actions: NDArray[np.float64]) -> Table:
    """A chunk, one row a control step."""
    table = Table(title=f"actions for '{prompt}'", title_justify="left")
    for name in ("step", "dx", "dy", "dz", "fingers"):
        table.add_column(name, justify="right")
    for step, row in enumerate(actions):
        table.add_row(str(step), *(f"{value:+.4f}" for value in row))
    return table


def distance_table(
    run: Run, demos: dict[str, Array], computed: Sequence[NDArray[np.float64]]
) -> Table:
    """Largest distance from the official code in float64, ours beside the official code's own."""
    title = (
        f"largest distance from the official code in float64, robot units ({run.precision.value}; "
        f"official over all observations: {run.yardstick:.1e})"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("prompt")
    for name in ("policyc", f"official {run.official.removeprefix('robot_')}"):
        table.add_column(name, justify="right")
    for index, actions in enumerate(computed):
        exact = demos["robot_ref64"][index].astype(np.float64)
        official = demos[run.official][index].astype(np.float64)
        table.add_row(
            str(demos["prompt"][index]),
            f"{np.abs(actions - exact).max():.2e}",
            f"{np.abs(official - exact).max():.2e}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
