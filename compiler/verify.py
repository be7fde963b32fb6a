"""Checks a bundle: bytes, graphs and plans, then computed values against its golden vectors."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from policyc.compiler.events import Event, Report
from policyc.compiler.ir.errors import IrError
from policyc.compiler.ir.verify import verify
from policyc.runtime_min.bundle import Bundle, graph_name
from policyc.runtime_min.errors import BundleError
from policyc.runtime_min.golden import Comparison, GoldenReport, check_golden
from policyc.runtime_min.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was checked. `golden` is None where only the structure was."""

    path: str
    files: int
    golden: GoldenReport | None

    @property
    def passed(self) -> bool:
        return self.golden is None or self.golden.passed

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return () if self.golden is None else self.golden.comparisons


def verify_bundle(path: Path, device: str | None, report: Report) -> Verification:
    """Check a bundle, on `device` (`cpu`, `cuda:0`) or in structure only (None).

    Raises:
        BundleError: damaged, or without golden vectors though a device was named.
        DeviceError: the device is missing or does not fit.
    """
    start = time.perf_counter()
    bundle = Bundle.open(path, "all")
    report(_timed(f"{len(bundle.manifest.files)} files have the right digests", start))
    start = time.perf_counter()
    _check_structure(bundle)
    report(_timed("graphs and plans follow the rules", start))
    golden = None if device is None else _compare(bundle, device, report)
    return Verification(path=str(path), files=len(bundle.manifest.files), golden=golden)


def verification_json(verification: Verification) -> dict[str, object]:
    """As plain values; a figure that is not finite is null."""
    return {
        "path": verification.path,
        "files": verification.files,
        "device": None if verification.golden is None else verification.golden.device,
        "passed": verification.passed,
        "comparisons": [
            {
                "name": item.name,
                "passed": item.passed,
                "max_abs": _finite(item.max_abs_error),
                "max_abs_limit": item.limit.max_abs,
                "relative_l2": _finite(item.relative_l2),
                "relative_l2_limit": item.limit.relative_l2,
                "cosine": _finite(item.cosine),
                "limits_from": item.limit.origin,
            }
            for item in verification.comparisons
        ],
    }


def _check_structure(bundle: Bundle) -> None:
    for batch in bundle.manifest.batch_buckets:
        try:
            verify(bundle.graph(batch))
        except IrError as error:
            raise BundleError(
                f"{bundle.folder / graph_name(batch)}: {error} Compile the bundle again."
            ) from error
    for capability in bundle.manifest.compute_capabilities:
        bundle.plan(capability)


def _compare(bundle: Bundle, device: str, report: Report) -> GoldenReport:
    start = time.perf_counter()
    with Policy.load(bundle.folder, device=device) as policy:
        report(_timed(f"loaded on {policy.device}", start))
        start = time.perf_counter()
        golden = check_golden(policy)
        report(_timed(f"{len(golden.comparisons)} golden outputs compared", start))
    return golden


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _timed(text: str, start: float) -> Event:
    return Event(kind="verify", text=text, seconds=time.perf_counter() - start)
