from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from policyc.compiler.costs import Cost
from policyc.compiler.ir.types import DType
from policyc.compiler.options import OptionError
from policyc.compiler.roofline import (
    Roofline,
    draw_roofline,
    load_plotting,
    measured_roofline,
    stage_point,
)
from policyc.profiles.loader import load_profile
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.graph_timing import ReplayCosts
from tests.runtime_min.bundles import write_bundle

PROFILE = load_profile("h200")


def made_up() -> Roofline:
    costs = (
        Cost(flops=2_000_000_000_000, bytes=3_000_000_000, dtype=DType.BF16),
        Cost(flops=1_000_000, bytes=500_000_000),
    )
    return Roofline(
        target="h200",
        batch=1,
        peak_flops=989.4e12,
        bandwidth_bytes_per_s=4.8e12,
        total_us=5000.0,
        stages=(
            stage_point("prefix", costs, 4000.0, PROFILE),
            stage_point("prompt", (Cost(bytes=100),), 3.0, PROFILE),
        ),
    )


def test_a_stage_against_its_roof() -> None:
    point = made_up().stages[0]
    assert point.roof_us == pytest.approx(2e12 / 989.4e12 * 1e6, rel=1e-3)
    assert point.intensity == pytest.approx(2_000_001 / 3500)
    assert point.tflops == pytest.approx(500.0, rel=1e-5)
    assert point.terabytes_per_s == pytest.approx(0.875)
    assert point.roof_share == pytest.approx(point.roof_us / 4000)
    assert made_up().ridge == pytest.approx(206.1, rel=1e-3)


def test_a_stage_without_time_or_bytes_divides_by_nothing() -> None:
    idle = stage_point("idle", (), 0.0, PROFILE)
    assert (idle.intensity, idle.tflops, idle.terabytes_per_s, idle.roof_share) == (0, 0, 0, None)


def test_stages_come_in_order_of_execution(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "a.policy"))
    measured = ReplayCosts(total_us=9.0, groups_us={"denoise/denoise": 6.0})
    shown = measured_roofline(bundle, PROFILE, 2, measured)
    assert [(point.stage, point.microseconds) for point in shown.stages] == [
        ("prompt", 0.0),
        ("denoise", 6.0),
    ]
    assert shown.stages[1].flops == 2 * 6 * 4 * 4 + 24 and shown.peak_flops == 989.4e12


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_roofline(tmp_path / "a.png", made_up())
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    empty = Roofline(
        target="h200",
        batch=1,
        peak_flops=1.0,
        bandwidth_bytes_per_s=1.0,
        total_us=0.0,
        stages=made_up().stages[1:],
    )
    with pytest.raises(OptionError, match="nothing to draw"):
        draw_roofline(tmp_path / "b.png", empty)


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def without(name: str, *rest: object, **options: object) -> object:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return genuine(name, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match="matplotlib"):
        load_plotting()
