from __future__ import annotations

import datetime
import io

from rich.console import Console, RenderableType

from policyc.compiler.cli.cost_tables import launch_table, roofline_table, tuning_table
from policyc.compiler.launch_costs import GroupCost, LaunchReport
from policyc.compiler.tune import Tuned, TuneReport
from policyc.compiler.tuning.timing import Timed
from tests.compiler.test_roofline import made_up


def printed(table: RenderableType) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(table)
    return text.getvalue()


def test_launches_with_and_without_a_time() -> None:
    def group(name: str, microseconds: float | None) -> GroupCost:
        return GroupCost(
            name=name,
            stage="denoise",
            launches=10,
            bytes=2_000_000,
            flops=4_000_000_000,
            roof_us=30.0,
            microseconds=microseconds,
        )

    report = LaunchReport(
        target="h200",
        batch=1,
        total_us=15920.0,
        groups=(group("linear_1", 120.0), group("count", None)),
    )
    text = printed(launch_table(report))
    for expected in ("linear_1", "120.0", "12.00", "25%", "kept", "15920.0 us"):
        assert expected in text


def test_stages() -> None:
    text = printed(roofline_table(made_up()))
    for expected in ("prefix", "571.4", "500.0", "989 TFLOP/s", "every prompt slot"):
        assert expected in text


def test_winners_failures_and_what_is_left() -> None:
    def timed(block: int, microseconds: float) -> Timed:
        return Timed(parameters=(("block", block),), microseconds=microseconds, spread=0.005)

    best, next_best = timed(64, 16.2), timed(128, 17.5)
    report = TuneReport(
        target="h200",
        date=datetime.date(2026, 1, 31),
        driver="580.1",
        clocks="sm 1980 MHz",
        problems=(
            Tuned(
                problem="linear a",
                uses=18,
                winner=best,
                timed=(best, next_best),
                failures={(("block", 32),): "wrong: result 0\nmore"},
            ),
            Tuned(problem="linear b", uses=1, winner=None, fault="no memory"),
        ),
        left=("linear c",),
        stopped="600 seconds of measuring were over",
    )
    text = printed(tuning_table(report))
    for expected in (
        "block=64",
        "16.20",
        "0.5%",
        "17.50",
        "block=32: wrong: result 0",
        "no memory",
    ):
        assert expected in text
    assert "not measured: 600 seconds" in text and "more" not in text
