"""The roofline of a policy's stages: arithmetic intensity against achieved speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policyc.compiler.costs import Cost
from policyc.compiler.ir.types import DType
from policyc.compiler.launch_costs import launch_costs
from policyc.compiler.options import OptionError
from policyc.profiles.profile import Profile
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.graph_timing import ReplayCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePoint:
    """A stage: least operations and bytes of all its launches, and the time it takes.

    `roof_us` is the larger of operations over peak and bytes over bandwidth, operations of
    different element types added up at their own peaks.
    """

    stage: str
    flops: int
    bytes: int
    roof_us: float
    microseconds: float

    @property
    def intensity(self) -> float:
        """Operations a byte; 0 for a stage that moves nothing."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def tflops(self) -> float:
        """Achieved, 10^12 operations a second; 0 where no time was seen."""
        return self.flops / self.microseconds / 1e6 if self.microseconds > 0 else 0.0

    @property
    def terabytes_per_s(self) -> float:
        return self.bytes / self.microseconds / 1e6 if self.microseconds > 0 else 0.0

    @property
    def roof_share(self) -> float | None:
        return self.roof_us / self.microseconds if self.microseconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """All stages of one bucket on one target; limits in operations and bytes a second."""

    target: str
    batch: int
    peak_flops: float
    bandwidth_bytes_per_s: float
    total_us: float
    stages: tuple[StagePoint, ...]

    @property
    def ridge(self) -> float:
        """Operations a byte from which arithmetic is the limit."""
        return self.peak_flops / self.bandwidth_bytes_per_s


def measured_roofline(
    bundle: Bundle, profile: Profile, batch: int, measured: ReplayCosts
) -> Roofline:
    """The stages of a bucket, timed as groups `stage/stage`, in order of execution.

    The ceiling is the profile's bf16 peak, or f32 where it has no other.
    """
    launches = bundle.plan(profile.compute_capability).buckets[batch].launches
    costs: dict[str, list[Cost]] = {}
    for launch, cost in launch_costs(bundle.graph(batch), launches):
        costs.setdefault(launch.stage, []).append(cost)
    peaks = profile.peak_flops
    return Roofline(
        target=profile.target,
        batch=batch,
        peak_flops=peaks.get(DType.BF16.value, peaks.get(DType.F32.value, 0.0)),
        bandwidth_bytes_per_s=profile.bandwidth_bytes_per_s,
        total_us=measured.total_us,
        stages=tuple(
            stage_point(stage, rows, measured.groups_us.get(f"{stage}/{stage}", 0.0), profile)
            for stage, rows in costs.items()
        ),
    )


def stage_point(
    stage: str, costs: Sequence[Cost], microseconds: float, profile: Profile
) -> StagePoint:
    """The point of a stage from the costs of its launches."""
    compute = sum(cost.compute_us(profile) for cost in costs)
    memory = sum(cost.memory_us(profile) for cost in costs)
    return StagePoint(
        stage=stage,
        flops=sum(cost.flops for cost in costs),
        bytes=sum(cost.bytes for cost in costs),
        roof_us=max(compute, memory),
        microseconds=microseconds,
    )


def draw_roofline(path: Path, shown: Roofline) -> None:
    """Write the plot as PNG.

    Raises:
        OptionError: no stage has both operations and a time.
        ModuleNotFoundError: matplotlib is not installed; the command line names the extra.
    """
    points = [point for point in shown.stages if point.tflops > 0 and point.intensity > 0]
    if not points:
        raise OptionError("nothing to draw: no stage has both operations and a measured time.")
    pyplot = load_plotting()
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    low = min(0.5 * min(point.intensity for point in points), 0.1 * shown.ridge)
    high = 10 * max(shown.ridge, *(point.intensity for point in points))
    _draw_roof(axes, shown, (low, high))
    for point in points:
        _draw_point(axes, point)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        xlabel="arithmetic intensity, operations a byte",
        ylabel="achieved, 10$^{12}$ operations a second",
        title=f"{shown.target}, batch {shown.batch}: one replay {shown.total_us / 1000:.2f} ms",
    )
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _draw_roof(axes: Any, shown: Roofline, span: tuple[float, float]) -> None:
    peak, bandwidth = shown.peak_flops / 1e12, shown.bandwidth_bytes_per_s / 1e12
    corners = (span[0], shown.ridge, span[1])
    axes.plot(corners, [min(peak, x * bandwidth) for x in corners], color="black", linewidth=1.5)
    axes.annotate(f"{bandwidth:.1f} TB/s", (span[0], span[0] * bandwidth), (24, 4),
                  textcoords="offset points", fontsize="small")  # fmt: skip
    axes.annotate(f"{peak:.0f} TFLOP/s", (span[1], peak), (-6, 4), ha="right",
                  textcoords="offset points", fontsize="small")  # fmt: skip


def _draw_point(axes: Any, point: StagePoint) -> None:
    share = "" if point.roof_share is None else f", {point.roof_share:.0%} of its roof"
    label = f"{point.stage}: {point.microseconds / 1000:.2f} ms{share}"
    axes.plot([point.intensity], [point.tflops], marker="o", linestyle="none", label=label)


def load_plotting() -> Any:
    """matplotlib's plotting module, drawing into files only; raises ModuleNotFoundError."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
