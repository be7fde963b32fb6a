"""`policyc compile`: from a checkpoint folder to a bundle."""

from __future__ import annotations

import importlib.metadata
import platform
import resource
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from policyc import __version__
from policyc.compiler.allocator import keep_freed_memory
from policyc.compiler.background import Background, Timed, background
from policyc.compiler.bundle_writer import BundleContents, require_writable, write_bundle
from policyc.compiler.errors import PassError
from policyc.compiler.events import Event, Report
from policyc.compiler.golden import GoldenVectors, make_golden
from policyc.compiler.ir.errors import IrError
from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.text import renumber
from policyc.compiler.ir.types import DType
from policyc.compiler.ir.verify import verify
from policyc.compiler.materialise import PackedWeights, materialise
from policyc.compiler.options import CompileOptions, Golden, Precision, Rope
from policyc.compiler.pipeline import PassRecord, PipelineOptions, run_pipeline
from policyc.compiler.targets import BuiltTarget, build_targets, open_targets
from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.families import family_of
from policyc.frontends.policy import PolicyOptions, PreparedPolicy
from policyc.frontends.processing_description import ProcessingOptions
from policyc.frontends.trace import trace

TOOLS = ("torch", "triton", "numpy", "ml_dtypes")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """What a compile did, for people and tests."""

    passes: tuple[PassRecord, ...]
    targets: tuple[BuiltTarget, ...]
    notes: tuple[str, ...]
    seconds: float
    peak_memory_bytes: int


def compile_checkpoint(options: CompileOptions, report: Report) -> CompileReport:
    """Compile a checkpoint and write its bundle.

    Raises:
        FrontendError: the checkpoint. ProfileError, ToolchainError: a target. OptionError: the
            output.
        PassError, VerifyError: our bug.
    """
    started = time.perf_counter()
    clock = _Clock(report)
    require_writable(options.output)
    keep_freed_memory()
    profiles = open_targets(options.targets, options.choices)
    checkpoint = Checkpoint.open(options.checkpoint)
    prepared = family_of(checkpoint).prepare(checkpoint, _policy_options(options))
    for note in (*prepared.notes, *prepared.processing.get("notes", ())):  # type: ignore[misc]
        report(Event(kind="note", text=str(note)))
    clock.lap("read", f"{checkpoint.folder}: {prepared.family}, layout {prepared.layout}")
    with background() as threads:
        digests = threads.start(prepared.source_digests)
        golden = _start_golden(threads, prepared, options)
        scheduled, passes = _schedule(prepared, options, clock)
        graphs, weights = _materialised(scheduled, prepared)
        built = build_targets(graphs, profiles, options.cache, report)
        clock.restart()
        parts = _Built(graphs=graphs, weights=weights, targets=built, passes=passes)
        finish = partial(_finished, golden, report)
        contents = _contents(prepared, options, parts, digests.result().value, finish)
        write_bundle(options.output, contents)
    clock.lap("write", str(options.output))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report(Event(kind="memory", text=f"{peak / 1e9:.1f} GB at most, mapped files included"))
    return CompileReport(
        passes=passes,
        targets=built,
        notes=prepared.notes,
        seconds=time.perf_counter() - started,
        peak_memory_bytes=peak,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """The compiled parts of a bundle, by batch size where there are several."""

    graphs: Mapping[int, Graph]
    weights: PackedWeights
    targets: tuple[BuiltTarget, ...]
    passes: tuple[PassRecord, ...]


class _Clock:
    """Reports each step with the seconds since the one before."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._last = time.perf_counter()

    def restart(self) -> None:
        self._last = time.perf_counter()

    def lap(self, kind: str, text: str) -> None:
        now = time.perf_counter()
        self.report(Event(kind=kind, text=text, seconds=now - self._last))
        self._last = now


def _policy_options(options: CompileOptions) -> PolicyOptions:
    return PolicyOptions(
        processing=ProcessingOptions(
            views=options.views,
            prompt_slots=options.prompt_slots,
            horizon=options.horizon,
            state_in_prompt=options.state_in_prompt,
            cameras=options.cameras,
            default_prompt=options.default_prompt,
            tokenizer=options.tokenizer,
        ),
        steps=options.steps,
        statistics=options.statistics,
        rounded_rope=None if options.rope is None else options.rope is Rope.ROUNDED,
        is_float32=None if options.precision is None else options.precision is Precision.FLOAT32,
    )


def _precision(prepared: PreparedPolicy) -> tuple[Precision, DType]:
    """What the bundle is computed in, and its element type in the graph."""
    if prepared.is_float32:
        return Precision.FLOAT32, DType.F32
    return Precision.BF16, DType.BF16


def _schedule(
    prepared: PreparedPolicy, options: CompileOptions, clock: _Clock
) -> tuple[dict[int, Graph], tuple[PassRecord, ...]]:
    """One scheduled graph a batch bucket, each still with its load stage."""
    graphs: dict[int, Graph] = {}
    records: tuple[PassRecord, ...] = ()
    pipeline = PipelineOptions(dtype=_precision(prepared)[1], keep=prepared.keep_float32)
    for batch in options.batch:
        traced = trace(prepared.model(batch))
        clock.lap("trace", f"batch {batch}: {sum(1 for _ in traced.nodes())} nodes")
        dump = None if options.dump is None else options.dump / f"batch_{batch}"
        graphs[batch], records = run_pipeline(traced, pipeline, dump)
        for record in records:
            change = f"{record.nodes_before} -> {record.nodes_after} nodes"
            text = f"{record.name}: {change if record.changed else 'nothing to do'}"
            clock.report(Event(kind="pass", text=text, seconds=record.seconds))
        clock.restart()
    return graphs, records


def _materialised(
    scheduled: Mapping[int, Graph], prepared: PreparedPolicy
) -> tuple[dict[int, Graph], PackedWeights]:
    """Graphs that read packed weights; all buckets share one set."""
    graphs: dict[int, Graph] = {}
    shared: PackedWeights | None = None
    for batch, graph in scheduled.items():
        final, packed = materialise(graph, prepared.read_weight)
        shared = packed if shared is None else shared
        if packed.values != shared.values:
            raise PassError(f"batch {batch} packs other weights than batch {next(iter(scheduled))}")
        graphs[batch] = renumber(final)
        try:
            verify(graphs[batch], "materialise")
        except IrError as error:
            raise PassError(str(error)) from error
    assert shared is not None, "options require a batch size"
    return graphs, shared


def _start_golden(
    threads: Background, prepared: PreparedPolicy, options: CompileOptions
) -> Future[Timed[GoldenVectors]] | None:
    """Golden vectors in the making; None where none are wanted."""
    if options.golden is Golden.NONE:
        return None
    stoppable = replace(prepared, read_weight=threads.stoppable(prepared.read_weight))
    dtype = _precision(prepared)[1]
    return threads.start(lambda: make_golden(stoppable, options.batch[0], dtype))


def _finished(golden: Future[Timed[GoldenVectors]] | None, report: Report) -> GoldenVectors | None:
    if golden is None:
        return None
    made = golden.result()
    text = f"{len(made.value.tolerances)} outputs by the adapter in float32, meanwhile"
    report(Event(kind="golden", text=text, seconds=made.seconds))
    return made.value


def _contents(
    prepared: PreparedPolicy,
    options: CompileOptions,
    parts: _Built,
    digests: Mapping[str, str],
    golden: Callable[[], GoldenVectors | None],
) -> BundleContents:
    return BundleContents(
        policy=prepared.family,
        precision=_precision(prepared)[0].value,
        targets=tuple(target for item in parts.targets for target in item.targets),
        options={
            **prepared.settings,
            "batch_buckets": list(options.batch),
            "targets": list(options.targets),
            "float32_products": list(prepared.keep_float32),
        },
        provenance={
            "layout": prepared.layout,
            "sources": digests,
            "tools": _tool_versions(),
            "passes": [record.name for record in parts.passes],
            "kernel_choices": {
                str(item.plan.compute_capability): item.decisions for item in parts.targets
            },
        },
        notice=_notice(prepared, digests),
        graphs=parts.graphs,
        plans={item.plan.compute_capability: item.plan for item in parts.targets},
        cubins={name: data for item in parts.targets for name, data in item.cubins.items()},
        weights=parts.weights,
        processing=prepared.processing,
        processing_files=prepared.processing_files,
        golden=golden,
    )


def _tool_versions() -> dict[str, str]:
    versions = {"policyc": __version__, "python": platform.python_version()}
    for tool in TOOLS:
        try:
            versions[tool] = importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            versions[tool] = "not installed"
    return versions


def _notice(prepared: PreparedPolicy, digests: Mapping[str, str]) -> str:
    """What is known of the licences: the code's, and that of the weights as the checkpoint
    states it."""
    stated = prepared.settings.get("license")
    lines = [
        "This bundle was made by policyc (Apache License 2.0), whose kernels it contains.",
        f"Weights: a {prepared.family} checkpoint in the {prepared.layout} layout. Licence stated "
        f"by the checkpoint: {stated or 'none; the terms of its publisher apply'}.",
        "Files they were made from (SHA-256):",
        *(f"  {digest}  {name}" for name, digest in sorted(digests.items())),
    ]
    return "\n".join(lines) + "\n"
