"""Records as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table

from policyc.compiler.bench import Receipt, Setup
from policyc.compiler.describe import (
    BundleDescription,
    PlanDescription,
    RobotInterface,
    TargetDescription,
)
from policyc.compiler.models import ModelFamily
from policyc.compiler.verify import Verification
from policyc.runtime_min.manifest import capability_text
from policyc.runtime_min.plan import Plan


def bundle_table(bundle: BundleDescription) -> Table:
    """What the bundle is and what the robot hands in and gets."""
    rows: list[tuple[str, str]] = [
        ("policy", bundle.policy),
        ("precision", bundle.precision),
        ("targets", _listed(f"{name} ({cc})" for name, cc in bundle.targets.items()) or "cpu"),
        ("options", _listed(f"{key}={value}" for key, value in bundle.options.items())),
        ("weights", f"{bundle.weights} tensors"),
        ("files", _listed(f"{name} {megabytes(size)}" for name, size in bundle.sizes.items())),
    ]
    if bundle.robot is not None:
        rows += _robot_rows(bundle.robot)
    for plan in bundle.plans:
        arenas = _listed(f"{name} {megabytes(size)}" for name, size in plan.arenas.items())
        text = f"{plan.launches} launches; {arenas}"
        rows.append((f"plan {plan.compute_capability}, batch {plan.batch}", text))
    return _facts(bundle.path, rows)


def kernels_table(plan: PlanDescription) -> Table:
    """Launches of one inference by stage and kernel."""
    title = f"launches of one inference, {plan.compute_capability}, batch {plan.batch}"
    rows = [(count.stage, count.kernel, str(count.launches)) for count in plan.kernels]
    return _table(title, ("stage", "kernel", "launches"), rows, numeric=1)


def launches_table(plan: Plan, batch: int) -> Table:
    """Every launch, in order."""
    rows = [
        (
            str(index),
            launch.stage,
            launch.node,
            launch.kernel,
            "x".join(map(str, launch.grid)),
            launch.origin,
        )
        for index, launch in enumerate(plan.buckets[batch].launches)
    ]
    title = f"launches, {capability_text(plan.compute_capability)}, batch {batch}"
    return _table(title, ("", "stage", "node", "kernel", "grid", "origin"), rows)


def targets_table(targets: Sequence[TargetDescription]) -> Table:
    """The devices that can be compiled for."""
    rows = [
        (
            target.name,
            target.device,
            target.compute_capability or "",
            _figure(target.sm_count),
            _figure(target.memory_bytes, 1e9, "GB"),
            _figure(target.bandwidth_bytes_per_s, 1e9, "GB/s"),
            f"{target.measured_choices} measured, {target.modelled_choices} by model",
        )
        for target in targets
    ]
    columns = ("target", "device", "capability", "SMs", "memory", "bandwidth", "kernel choices")
    return _table("targets", columns, rows)


def models_table(models: Sequence[ModelFamily]) -> Table:
    """The model families that can be compiled."""
    rows = [
        (model.name, model.title, ", ".join(model.layouts), ", ".join(model.precisions))
        for model in models
    ]
    return _table("models", ("name", "family", "checkpoint layouts", "precisions"), rows)


def verification_table(verification: Verification) -> Table:
    """Every comparison with its limits and verdict."""
    rows = [
        (
            item.name,
            f"{item.max_abs_error:.3g} / {item.limit.max_abs:.3g}",
            f"{item.relative_l2:.3g} / {item.limit.relative_l2:.3g}",
            f"{item.cosine:.8f}",
            "ok" if item.passed else "FAILED",
        )
        for item in verification.comparisons
    ]
    golden = verification.golden
    where = "structure only" if golden is None else golden.device
    verdict = "ok" if verification.passed else "FAILED"
    title = f"{verification.path}: {verdict} ({where}, {verification.files} files)"
    columns = ("output", "max error / limit", "relative / limit", "cosine", "")
    table = _table(title, columns, rows)
    if golden is not None and golden.first_failure is not None:
        table.caption = escape(f"first value out of tolerance: {golden.first_failure}")
    return table


def setup_table(setup: Setup) -> Table:
    """What was measured, on what."""
    hardware = _listed(f"{key}={value}" for key, value in setup.hardware.items())
    rows = [
        ("bundle", f"{setup.bundle} ({setup.policy}), manifest {setup.manifest_sha256[:12]}"),
        ("device", f"{setup.device}: {hardware}"),
        ("host", _listed(f"{key}={value}" for key, value in setup.host.items())),
        ("precision", setup.precision),
        ("options", _listed(f"{key}={value}" for key, value in setup.options.items())),
        ("views, horizon, batch", f"{setup.views}, {setup.horizon}, {setup.batch}"),
        ("prompt", f"{setup.prompt_valid} valid of {setup.prompt_slots} slots"),
        ("taken", f"{setup.taken_at}, policyc {setup.policyc}, {setup.warmup} calls of warm-up"),
    ]
    return _facts("setup", rows)


def receipt_table(receipt: Receipt) -> Table:
    """The figures, in milliseconds."""
    rows = [
        (
            timing.boundary,
            str(timing.n),
            *(f"{us / 1000:.3f}" for us in (timing.p50_us, timing.p95_us)),
            *(f"{us / 1000:.3f}" for us in (timing.p99_us, timing.max_us)),
        )
        for timing in receipt.timings
    ]
    table = _table("latency, ms", ("boundary", "n", "p50", "p95", "p99", "max"), rows, numeric=5)
    if receipt.load is not None:
        load = receipt.load
        table.caption = (
            f"open {load.open_s:.3f} s, load {load.policy_load_s:.3f} s, first call "
            f"{load.first_call_s * 1000:.3f} ms, median of the next "
            f"{load.median_call_s * 1000:.3f} ms"
        )
    return table


def megabytes(size_bytes: int) -> str:
    """`12.3 MB`, of 1,000,000 bytes."""
    return f"{size_bytes / 1e6:.1f} MB"


def _robot_rows(robot: RobotInterface) -> list[tuple[str, str]]:
    required = "required" if robot.state_required else "not read"
    height, width = robot.image_size
    rows = [
        ("cameras", f"{', '.join(robot.cameras)}; resized to {height} x {width}"),
        ("state", f"{robot.state_width} numbers, {required}"),
        ("prompt", f"{robot.prompt_slots} token slots, default {robot.default_prompt!r}"),
        (
            "actions",
            f"{robot.horizon} x {len(robot.action_names)}: {', '.join(robot.action_names)}",
        ),
    ]
    return rows + [("note", note) for note in robot.notes]


def _figure(value: float | None, unit: float = 1, name: str = "") -> str:
    return "" if value is None else f"{value / unit:,.0f} {name}".strip()


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items)


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(title=escape(title), show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: int = 0
) -> Table:
    """A table whose last `numeric` columns are set flush right."""
    table = Table(title=escape(title), title_justify="left")
    for index, column in enumerate(columns):
        right = index >= len(columns) - numeric
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
