"""Costs of launches, stages and problems as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table

from policyc.compiler.bench import Receipt
from policyc.compiler.explain import Explanation
from policyc.compiler.launch_costs import LaunchReport
from policyc.compiler.roofline import Roofline
from policyc.compiler.tune import TuneReport
from policyc.passes.select_kernels import parameters_text

ALL_SLOTS = "Operations and bytes are those of full lengths: every prompt slot, every camera."


def launch_table(report: LaunchReport) -> Table:
    """What each kernel of each stage adds to a replay."""
    names = ("stage", "kernel", "launches", "us in graph", "us each", "MB", "GFLOP", "roof")
    table = _table(f"launches, {report.target}, batch {report.batch}", names, text_columns=2)
    for group in report.groups:
        table.add_row(
            escape(group.stage),
            escape(group.name),
            str(group.launches),
            _number(group.microseconds, 1, "kept"),
            _number(group.us_per_launch, 2),
            f"{group.bytes / 1e6:.1f}",
            f"{group.flops / 1e9:.2f}",
            _percent(group.roof_share),
        )
    table.caption = (
        f"One replay: {report.total_us:.1f} us. A group's time is the replay less a replay without "
        f"it, so groups that overlap do not add up. {ALL_SLOTS}"
    )
    return table


def roofline_table(shown: Roofline) -> Table:
    """What each stage achieves against its roof."""
    names = ("stage", "GFLOP", "MB", "FLOP/byte", "us", "TFLOP/s", "TB/s", "roof us", "roof")
    table = _table(f"roofline, {shown.target}, batch {shown.batch}", names, text_columns=1)
    for point in shown.stages:
        table.add_row(
            escape(point.stage),
            f"{point.flops / 1e9:.2f}",
            f"{point.bytes / 1e6:.1f}",
            f"{point.intensity:.1f}",
            f"{point.microseconds:.1f}",
            f"{point.tflops:.1f}",
            f"{point.terabytes_per_s:.2f}",
            f"{point.roof_us:.1f}",
            _percent(point.roof_share),
        )
    table.caption = (
        f"One replay: {shown.total_us:.1f} us. Roof: {shown.peak_flops / 1e12:.0f} TFLOP/s, "
        f"{shown.bandwidth_bytes_per_s / 1e12:.2f} TB/s. Bytes count each launch's operands and "
        f"results once, also those that stay in the cache. {ALL_SLOTS}"
    )
    return table


def throughput_table(receipt: Receipt) -> Table:
    """Samples a second, and the time that each sample costs."""
    batch = receipt.setup.batch
    table = _table(f"batch {batch}", ("boundary", "T, ms", "Q = B / T", "T / B, ms"), 1)
    for timing in receipt.timings:
        table.add_row(
            timing.boundary,
            f"{timing.p50_us / 1000:.3f}",
            f"{batch / timing.p50_us * 1e6:.1f} samples/s",
            f"{timing.p50_us / 1000 / batch:.3f}",
        )
    table.caption = "T (p50) is what each robot waits; T / B is only what a sample costs."
    return table


def explanation_table(rows: Sequence[Explanation], target: str) -> Table:
    """Winner, runner-up and cost of each problem."""
    names = ("problem", "chosen, and why", "uses", "us", "MB", "GFLOP", "roof us", "roof")
    table = _table(f"kernel choices, {target}", names, text_columns=2)
    for row in rows:
        table.add_row(
            f"[bold]{escape(row.problem)}[/bold]\n{escape(row.shapes)}",
            escape(
                f"{row.winner}\n  {row.reason}\nnext: {row.runner_up}\n  {row.runner_up_reason}"
            ),
            str(row.uses),
            _number(row.measured_us, 2, _model(row)),
            f"{row.bytes / 1e6:.2f}",
            f"{row.flops / 1e9:.2f}",
            f"{row.roof_us:.2f}",
            _percent(row.roof_share),
        )
    table.caption = (
        "us: measured on the target; '~' marks the model's figure, which only orders candidates "
        f"and is no measurement. {ALL_SLOTS}"
    )
    return table


def _model(row: Explanation) -> str:
    return "" if row.model_cost is None else f"~{row.model_cost:.3g}"


def _number(value: float | None, digits: int, absent: str = "") -> str:
    return absent if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _table(title: str, names: Iterable[str], text_columns: int) -> Table:
    """A table whose columns from `text_columns` on are set flush right."""
    table = Table(title=escape(title), title_justify="left")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index < text_columns else "right", overflow="fold")
    return table


def tuning_table(report: TuneReport) -> Table:
    """The winner of each problem, and why others failed."""
    names = ("problem", "chosen", "uses", "us", "spread", "next us", "failed")
    where = f"driver {report.driver}, clocks {report.clocks}"
    table = _table(f"tuned {report.target}, {report.date}, {where}", names, text_columns=2)
    for item in report.problems:
        winner = item.winner
        others = [timed for timed in item.timed if timed is not winner]
        table.add_row(
            escape(item.problem),
            escape(
                _first_line(item.fault) if winner is None else parameters_text(winner.parameters)
            ),
            str(item.uses),
            "" if winner is None else f"{winner.microseconds:.2f}",
            "" if winner is None else f"{winner.spread:.1%}",
            f"{others[0].microseconds:.2f}" if others else "",
            str(len(item.failures) or ""),
        )
    for key in report.left:
        table.add_row(escape(key), escape(f"not measured: {report.stopped}"))
    failures = [
        f"{item.problem}, {parameters_text(parameters)}: {_first_line(reason)}"
        for item in report.problems
        for parameters, reason in item.failures.items()
    ]
    if failures:
        table.caption = escape("failed candidates:\n" + "\n".join(failures))
        table.caption_justify = "left"
    return table


def _first_line(text: str) -> str:
    return text.partition("\n")[0] or "no candidate is left"
