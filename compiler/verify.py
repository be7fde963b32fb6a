"""Checks a bundle: bytes, graphs and plans, then computed values against its golden vectors.

`golden.safetensors` holds cases as `<case>/in/<input>` and `<case>/out/<output>`: tensors as
`Policy.run` takes and gives them, with a leading batch axis. The manifest has a tolerance for every
output.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from policyc.compiler.events import Event, Report
from policyc.compiler.ir.errors import IrError, TensorFileError
from policyc.compiler.ir.tensor_file import TensorFile
from policyc.compiler.ir.types import Array
from policyc.compiler.ir.verify import verify
from policyc.runtime_min.bundle import GOLDEN_NAME, Bundle, graph_name
from policyc.runtime_min.errors import BundleError
from policyc.runtime_min.manifest import Tolerance
from policyc.runtime_min.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One output of one golden case against what was computed.

    `relative_l2` is the 2-norm of the error over that of the golden vector, `cosine` is for people
    only: it cannot see a wrong scale. `limits` decide.
    """

    case: str
    output: str
    max_abs: float
    relative_l2: float
    cosine: float
    limits: Tolerance

    @property
    def passed(self) -> bool:
        """False for NaN as well."""
        within = self.max_abs <= self.limits.max_abs
        return within and self.relative_l2 <= self.limits.relative_l2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was checked. `device` is None where only the structure was."""

    path: str
    device: str | None
    files: int
    comparisons: tuple[Comparison, ...]

    @property
    def passed(self) -> bool:
        return all(comparison.passed for comparison in self.comparisons)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoldenCase:
    """Inputs of one inference and what it must give."""

    name: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


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
    comparisons: tuple[Comparison, ...] = ()
    if device is not None:
        comparisons = _compare(bundle, device, report)
    return Verification(
        path=str(path), device=device, files=len(bundle.manifest.files), comparisons=comparisons
    )


def read_golden(bundle: Bundle) -> tuple[GoldenCase, ...]:
    """The golden cases of a bundle, sorted by name.

    Raises:
        BundleError: no golden vectors, a name of another form, or a case without inputs or outputs.
    """
    if not bundle.has(GOLDEN_NAME):
        raise BundleError(
            f"{bundle.folder}: has no golden vectors, so nothing can be compared. Compile it with "
            "--golden float32, or check the structure only: policyc verify --structure-only."
        )
    path = bundle.path_of(GOLDEN_NAME)
    try:
        file = TensorFile.open(path)
    except TensorFileError as error:
        raise BundleError(f"{error} Compile the bundle again.") from error
    found: dict[str, dict[str, dict[str, Array]]] = {}
    for name in file.names:
        parts = name.split("/", 2)
        if len(parts) != 3 or parts[1] not in ("in", "out"):
            raise BundleError(f"{path}: tensor {name!r}; expected CASE/in/NAME or CASE/out/NAME.")
        case, side, value = parts
        found.setdefault(case, {"in": {}, "out": {}})[side][value] = file.read(name)
    empty = sorted(case for case, sides in found.items() if not sides["in"] or not sides["out"])
    if empty or not found:
        raise BundleError(f"{path}: no inputs or outputs for {', '.join(empty) or 'any case'}.")
    return tuple(
        GoldenCase(name=case, inputs=sides["in"], outputs=sides["out"])
        for case, sides in sorted(found.items())
    )


def compare_arrays(
    case: str, output: str, computed: Array, golden: Array, limits: Tolerance
) -> Comparison:
    """Errors in float64; a shape that differs is an error of infinite size."""
    if computed.shape != golden.shape:
        nothing = float("nan")
        return Comparison(
            case=case, output=output, max_abs=float("inf"), relative_l2=float("inf"),
            cosine=nothing, limits=limits,
        )  # fmt: skip
    ours = computed.astype(np.float64).ravel()
    theirs = golden.astype(np.float64).ravel()
    norm = float(np.linalg.norm(theirs))
    error = ours - theirs
    return Comparison(
        case=case,
        output=output,
        max_abs=float(np.abs(error).max(initial=0.0)),
        relative_l2=float(np.linalg.norm(error)) / max(norm, np.finfo(np.float64).tiny),
        cosine=float(ours @ theirs) / max(norm * float(np.linalg.norm(ours)), 1e-300),
        limits=limits,
    )


def verification_json(verification: Verification) -> dict[str, object]:
    """As plain values, with the verdicts."""
    value = asdict(verification)
    value["passed"] = verification.passed
    for row, comparison in zip(value["comparisons"], verification.comparisons, strict=True):
        row["passed"] = comparison.passed
    return value


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


def _compare(bundle: Bundle, device: str, report: Report) -> tuple[Comparison, ...]:
    cases = read_golden(bundle)
    start = time.perf_counter()
    with Policy.load(bundle.folder, device=device) as policy:
        report(_timed(f"loaded on {policy.device}", start))
        return tuple(
            comparison for case in cases for comparison in _compare_case(policy, case, report)
        )


def _compare_case(policy: Policy, case: GoldenCase, report: Report) -> tuple[Comparison, ...]:
    limits = policy.bundle.manifest.tolerances
    missing = sorted(set(case.outputs) - set(limits))
    if missing:
        raise BundleError(f"{policy.bundle.folder}: no tolerance for {', '.join(missing)}.")
    start = time.perf_counter()
    computed = policy.run_for_comparison(case.inputs, tuple(case.outputs))
    report(_timed(f"case {case.name}: {len(case.outputs)} outputs", start))
    return tuple(
        compare_arrays(case.name, name, computed[name], golden, limits[name])
        for name, golden in case.outputs.items()
    )


def _timed(text: str, start: float) -> Event:
    return Event(kind="verify", text=text, seconds=time.perf_counter() - start)
