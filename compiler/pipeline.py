"""The one pipeline, as data, and the driver that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from policyc.compiler.errors import PassError
from policyc.compiler.ir.errors import IrError
from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.text import print_graph, renumber
from policyc.compiler.ir.types import DType
from policyc.compiler.ir.verify import verify
from policyc.compiler.levels import is_fused, is_scheduled, is_traced
from policyc.passes.clone_report_views import clone_report_views
from policyc.passes.drop_unused import drop_unused
from policyc.passes.fold_constants import fold_constants
from policyc.passes.fold_norm_weights import fold_norm_weights
from policyc.passes.fold_step_length import fold_step_length
from policyc.passes.fuse_activation import fuse_activation
from policyc.passes.fuse_add_norm import fuse_add_norm
from policyc.passes.fuse_embedding_scale import fuse_embedding_scale
from policyc.passes.fuse_gated_linear import fuse_gated_linear
from policyc.passes.fuse_norm_affine import fuse_norm_affine
from policyc.passes.fuse_pointwise import fuse_pointwise
from policyc.passes.hoist_invariants import hoist_invariants
from policyc.passes.merge_projections import merge_projections
from policyc.passes.merge_rope import merge_rope
from policyc.passes.pad_patches import pad_patches
from policyc.passes.set_precision import SetPrecision, set_precision
from policyc.passes.simplify_views import simplify_views
from policyc.passes.skip_padded_rows import skip_padded_rows
from policyc.passes.split_reductions import split_reductions
from policyc.passes.unroll_solver import unroll_solver

Level = Callable[[Graph], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """What the passes are told: element type of products, and origins that stay in float32."""

    dtype: DType = DType.BF16
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """One row of the pipeline: the pass, how it is called, and the level before and after it."""

    name: str
    run: Callable[[Graph, PipelineOptions], Graph]
    requires: Level
    ensures: Level


def _plain(function: Callable[[Graph], Graph], requires: Level, ensures: Level) -> PassRow:
    return PassRow(
        name=function.__name__,
        run=lambda graph, _: function(graph),
        requires=requires,
        ensures=ensures,
    )


def _precision(graph: Graph, options: PipelineOptions) -> Graph:
    return set_precision(graph, SetPrecision(dtype=options.dtype, keep=options.keep))


PIPELINE: tuple[PassRow, ...] = (
    # Work goes to the slowest rate; what nothing reads goes away.
    _plain(drop_unused, is_traced, is_traced),
    _plain(hoist_invariants, is_traced, is_traced),
    # After hoist_invariants: a table may read what the load stage computes.
    _plain(fold_constants, is_traced, is_traced),
    # Factors go into weights while these are float32 and linears stand alone.
    _plain(fold_norm_weights, is_traced, is_traced),
    _plain(fold_step_length, is_traced, is_traced),
    _plain(pad_patches, is_traced, is_traced),
    # Gate and up first: merge_projections would take them for a plain pair.
    _plain(fuse_gated_linear, is_traced, is_traced),
    _plain(merge_projections, is_traced, is_traced),
    # After merge_projections: rotated heads must be slices of one value.
    _plain(merge_rope, is_traced, is_traced),
    _plain(simplify_views, is_traced, is_traced),
    # Epilogues and norms; add_norm needs norms that have their affine terms.
    _plain(fuse_activation, is_traced, is_traced),
    _plain(fuse_embedding_scale, is_traced, is_traced),
    _plain(fuse_norm_affine, is_traced, is_traced),
    _plain(fuse_add_norm, is_traced, is_traced),
    # Last of the fusions: groups take what is left.
    _plain(fuse_pointwise, is_traced, is_fused),
    # After all folding, so that weights are rounded once.
    PassRow(name="set_precision", run=_precision, requires=is_fused, ensures=is_traced),
    _plain(split_reductions, is_traced, is_traced),
    # Once the ops are those that kernels exist for.
    _plain(skip_padded_rows, is_traced, is_traced),
    # Every pass before it works on one step instead of all.
    _plain(unroll_solver, is_traced, is_scheduled),
    # After unroll_solver, which puts the stacks of collected values into the report stage.
    _plain(clone_report_views, is_scheduled, is_scheduled),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """What one pass did: seconds it took and the number of nodes before and after."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    changed: bool


def run_pipeline(
    graph: Graph,
    options: PipelineOptions,
    dump: Path | None = None,
    watch: Callable[[str, Graph, Graph], None] | None = None,
) -> tuple[Graph, tuple[PassRecord, ...]]:
    """Run every pass, verifying after each.

    Args:
        graph: level traced.
        options: what the passes are told.
        dump: folder for the text after each pass, `07_fuse_gated_linear.ir`.
        watch: called with a pass's name and the graph before and after it.

    Raises:
        PassError: a pass failed or broke a rule; names it and the passes before it.
    """
    graph = renumber(graph)
    verify(graph, "trace")
    _dump(graph, dump, 0, "trace")
    records: list[PassRecord] = []
    for number, row in enumerate(PIPELINE, start=1):
        started = time.perf_counter()
        result = _run_row(row, graph, options, records)
        seconds = time.perf_counter() - started
        records.append(
            PassRecord(
                name=row.name,
                seconds=seconds,
                nodes_before=sum(1 for _ in graph.nodes()),
                nodes_after=sum(1 for _ in result.nodes()),
                changed=result is not graph,
            )
        )
        if watch is not None:
            watch(row.name, graph, result)
        graph = result
        _dump(graph, dump, number, row.name)
    return graph, tuple(records)


def _run_row(
    row: PassRow, graph: Graph, options: PipelineOptions, records: list[PassRecord]
) -> Graph:
    try:
        row.requires(graph)
        result = row.run(graph, options)
        if result is graph:
            return graph
        result = renumber(result)
        verify(result, row.name)
        row.ensures(result)
    except (IrError, AssertionError) as error:
        before = ", ".join(record.name for record in records) or "none"
        raise PassError(f"pass {row.name} failed (passes before it: {before}): {error}") from error
    return result


def _dump(graph: Graph, folder: Path | None, number: int, name: str) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number:02d}_{name}.ir").write_text(print_graph(graph))
