"""Checks every kernel family but the linear one on the GPU at hand, and times the candidates.

    python tests/gpu/kernel_checks.py --out FOLDER     # needs a GPU, torch and triton
    python tests/gpu/kernel_checks.py --batches        # larger batches as well
    python tests/gpu/kernel_checks.py --dry-run        # compiles all candidates, on any machine

Every candidate runs on fresh random operands with poisoned results against the op table in float64,
then in a CUDA graph over rotating copies of all buffers; the results of every copy must equal the
first ones bit for bit afterwards. Problems of odd sizes are only checked. A candidate that fails is
recorded and the checks go on; a fault of the device ends them, since nothing after it could be
trusted. Writes `kernel_choices.toml` and prints a table last.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TRITON_CACHE_DIR", "/tmp/policyc-kernel-checks")

from policyc.compiler.ir.types import Array  # noqa: E402
from policyc.kernels.families import family_of  # noqa: E402
from policyc.kernels.spec import KernelCall, Parameters, View  # noqa: E402
from tests.gpu.kernel_cases import (  # noqa: E402
    BATCHED,
    FULL,
    ODD,
    Build,
    needed_rows,
    poison_unused_keys,
    tolerance,
)
from tests.gpu.linear_sweep import (  # noqa: E402
    CompileOnlyDriver,
    device_at_hand,
    facts_of_machine,
    launcher,
    options_of,
    say,
    time_us,
)
from tests.kernels.cases import HOPPER, Case, TestDevice, difference, runnable  # noqa: E402
from tests.kernels.execution import bound_arguments, kernel_function  # noqa: E402

COPIES = 4
"""Sets of buffers in rotation: operands come from L2, as behind the kernel that wrote them."""


FAULTS = ("illegal", "misaligned", "unspecified launch")
"""In messages of errors after which the context can do nothing more."""


@dataclass(slots=True, kw_only=True)
class Measurement:
    """One candidate on one problem."""

    parameters: dict[str, int]
    relative_error: float | None = None
    microseconds: float | None = None
    spread: float | None = None
    failure: str = ""
    lost_device: bool = False


@dataclass(slots=True, kw_only=True)
class Row:
    """One problem and its candidates, cheapest by the model first."""

    problem: str
    timed: bool
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def best(self) -> Measurement | None:
        timed = [m for m in self.measurements if m.microseconds is not None and not m.failure]
        return min(timed, key=lambda m: m.microseconds or 0.0, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A problem with the candidates to run."""

    case: Case
    key: str
    candidates: tuple[Parameters, ...]
    timed: bool

    def expected_us(self, parameters: Parameters, device: TestDevice) -> float:
        """The model's cost, which bounds how often a launch is repeated to time it."""
        family = family_of(self.case.node.op)
        offered = family.candidates(self.case.node, self.case.types, device)
        return next(c.cost for c in offered if c.parameters == parameters)

    def calls(self, parameters: Parameters, device: TestDevice) -> tuple[KernelCall, ...]:
        return self.case.calls(family_of(self.case.node.op), parameters, device)


def make_plan(build: Build, limit: int, timed: bool, device: TestDevice) -> Plan:
    case = build()
    poison_unused_keys(case)
    family = family_of(case.node.op)
    found = runnable(family, case, device)
    # Checks of odd sizes take candidates from both ends of the model's order.
    chosen = found[:limit] if timed else tuple(dict.fromkeys((found[0], found[-1])))
    key = family.problem(case.node, case.types).key
    return Plan(case=case, key=key, candidates=chosen, timed=timed)


# Compiling, in worker processes without a GPU.


def compile_calls(calls: tuple[KernelCall, ...], capability: int) -> str:
    """Fill Triton's disk cache as the later launches will ask for it; the error, or nothing."""
    import torch
    from triton.runtime.driver import driver

    driver.set_active(CompileOnlyDriver(capability))
    try:
        for call in calls:
            views = [a for _, a in call.arguments if isinstance(a, View)]
            tensors = {view.base: torch.empty(0, dtype=torch.uint8) for view in views}
            kernel_function(call).warmup(
                **bound_arguments(call, tensors),
                **dict(call.constants),
                grid=call.grid,
                **options_of(call),
            )
    except Exception as error:  # noqa: BLE001  # every failure of the compiler is a result here
        return f"{type(error).__name__}: {str(error)[-300:]}"
    return ""


def compile_all(
    plans: list[Plan], device: TestDevice, workers: int
) -> dict[tuple[str, Parameters], str]:
    """The compile error by problem and parameters, empty where there is none."""
    errors: dict[tuple[str, Parameters], str] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {
            (plan.key, parameters): pool.submit(
                compile_calls, plan.calls(parameters, device), device.compute_capability
            )
            for plan in plans
            for parameters in plan.candidates
        }
        for job, future in futures.items():
            try:
                errors[job] = future.result()
            except BrokenExecutor as error:
                errors[job] = f"the compiler aborted the process: {error}"
    return errors


# Measuring, on the GPU.


def to_gpu(array: Array) -> Any:
    """The bytes of a flat array; views give them their type."""
    import torch

    return torch.from_numpy(array.view(np.uint8).copy()).cuda()


def results_of(plan: Plan, tensors: dict[str, Any]) -> list[Array]:
    """The needed rows of each result."""
    found = []
    for value in plan.case.node.outputs:
        raw = tensors[value.name].cpu().numpy().view(value.type.dtype.numpy)
        is_bf16 = raw.dtype == ml_dtypes.bfloat16
        wide = raw.astype(np.float32) if is_bf16 else raw
        found.append(needed_rows(plan.case, wide.reshape(value.type.shape)))
    return found


def measure(plan: Plan, parameters: Parameters, device: TestDevice) -> Measurement:
    """Check one candidate, then time it where the plan says so."""
    result = Measurement(parameters=dict(parameters))
    try:
        _measure(plan, parameters, device, result)
    except Exception as error:  # noqa: BLE001  # a failing candidate is a result of the checks
        result.lost_device = any(text in str(error) for text in FAULTS)
        result.failure = f"{type(error).__name__}: {str(error)[:300]}"
    return result


def _measure(plan: Plan, parameters: Parameters, device: TestDevice, result: Measurement) -> None:
    buffers = plan.case.all_buffers(family_of(plan.case.node.op), parameters)
    calls = plan.calls(parameters, device)
    # A buffer of no bytes has no pointer.
    filled = {name: array for name, array in buffers.items() if array.size}
    copies = [
        {name: to_gpu(array) for name, array in filled.items()}
        for _ in range(COPIES if plan.timed else 1)
    ]
    launches = [_launch_all(calls, tensors) for tensors in copies]
    launches[0]()
    first = results_of(plan, copies[0])
    result.relative_error = max(
        difference(found, needed_rows(plan.case, expected)).relative
        for found, expected in zip(first, plan.case.expected, strict=True)
    )
    if not result.relative_error <= tolerance(plan.case):
        result.failure = f"wrong: {result.relative_error:.2e} of the largest value"
        return
    for name, array in plan.case.buffers.items():
        if copies[0][name].cpu().numpy().tobytes() != array.tobytes():
            result.failure = f"operand {name} was overwritten"
            return
    if plan.timed:
        result.microseconds, result.spread = time_us(launches, plan.expected_us(parameters, device))
        for tensors in copies:
            for found, expected in zip(results_of(plan, tensors), first, strict=True):
                if not np.array_equal(found, expected):
                    result.failure = "results in the graph differ from the first ones"


def _launch_all(calls: tuple[KernelCall, ...], tensors: dict[str, Any]) -> Callable[[], None]:
    launchers = [launcher(call, tensors) for call in calls]

    def launch() -> None:
        for one in launchers:
            one()

    return launch


# Reporting.


def short(parameters: dict[str, int]) -> str:
    names = {"block_m": "m", "block_n": "n", "num_warps": "w", "num_stages": "s", "splits": "x"}
    return " ".join(f"{names.get(name, name)}{value}" for name, value in parameters.items())


def table_line(row: Row) -> str:
    failures = sum(bool(m.failure) for m in row.measurements)
    worst = max((m.relative_error or 0.0 for m in row.measurements), default=0.0)
    verdict = f"{failures} FAILED" if failures else "ok"
    best = row.best
    figures = f"{best.microseconds:8.2f} {short(best.parameters)}" if best else ""
    return f"{row.problem[:84]:84} {len(row.measurements):3} {verdict:9} {worst:.1e} {figures}"


def write_results(folder: Path, rows: list[Row], facts: dict[str, str]) -> None:
    """`kernel_choices.toml` with the winners, `kernel_measurements.json` with everything."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["[measured]", *(f"{key} = {json.dumps(value)}" for key, value in facts.items())]
    for row in rows:
        best = row.best
        if best is None:
            continue
        parameters = ", ".join(f"{name} = {value}" for name, value in best.parameters.items())
        lines += [
            "",
            "[[choice]]",
            f"problem = {json.dumps(row.problem)}",
            f"parameters = {{{parameters}}}",
            f"microseconds = {best.microseconds:.3f}",
            f"spread = {best.spread:.3f}",
            'how = "measured"',
        ]
    (folder / "kernel_choices.toml").write_text("\n".join(lines) + "\n")
    everything = {"facts": facts, "problems": [asdict(row) for row in rows]}
    (folder / "kernel_measurements.json").write_text(json.dumps(everything, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("kernel_checks"), help="folder")
    parser.add_argument("--limit", type=int, default=18, help="most candidates a problem")
    parser.add_argument("--seconds", type=float, default=140.0, help="time for everything")
    parser.add_argument("--only", default="", help="only problems whose key contains this text")
    parser.add_argument("--batches", action="store_true", help="time larger batches as well")
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 16))
    parser.add_argument("--dry-run", action="store_true", help="compile for 9.0, launch nothing")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    started = time.monotonic()
    device = HOPPER if arguments.dry_run else device_at_hand()
    timed = (*FULL, *BATCHED) if arguments.batches else FULL
    plans = [make_plan(build, arguments.limit, True, device) for build in timed]
    plans += [make_plan(build, arguments.limit, False, device) for build in ODD]
    plans = [plan for plan in plans if arguments.only in plan.key]
    say(f"{len(plans)} problems made in {time.monotonic() - started:.0f} s")
    errors = compile_all(plans, device, arguments.workers)
    failed = {job: error for job, error in errors.items() if error}
    seconds = time.monotonic() - started
    say(f"{len(errors)} candidates compiled by {seconds:.0f} s, {len(failed)} failed")
    for (key, parameters), error in failed.items():
        say(f"  {key} {short(dict(parameters))}: {error}")
    if arguments.dry_run:
        return 1 if failed else 0
    facts = facts_of_machine()  # a fault leaves no device to ask
    rows = run(plans, errors, device, started + arguments.seconds)
    write_results(arguments.out, rows, facts)
    for row in rows:
        for m in row.measurements:
            if m.failure:
                say(f"FAILED {row.problem} {short(m.parameters)}: {m.failure}")
    say("\n".join(table_line(row) for row in rows))
    return 1 if any(m.failure for row in rows for m in row.measurements) else 0


def run(
    plans: list[Plan],
    errors: dict[tuple[str, Parameters], str],
    device: TestDevice,
    end: float,
) -> list[Row]:
    """Checks of odd sizes come first, then what is timed; what no time is left for is said.

    Ends with the candidate that made the device fault.
    """
    rows = []
    for plan in sorted(plans, key=lambda plan: plan.timed):
        say(f"running {plan.key}")
        row = Row(problem=plan.key, timed=plan.timed)
        rows.append(row)
        for parameters in plan.candidates:
            failure = errors[plan.key, parameters]
            if time.monotonic() > end:
                failure = "not run: out of time"
            row.measurements.append(
                Measurement(parameters=dict(parameters), failure=failure)
                if failure
                else measure(plan, parameters, device)
            )
            if row.measurements[-1].lost_device:
                say(f"the device is lost after {short(dict(parameters))}; nothing else is run")
                return rows
    return rows


if __name__ == "__main__":
    sys.exit(main())
