"""Which ops may stand at each level of the pipeline, outside the load and report stages."""

from __future__ import annotations

from policyc.compiler.ir.errors import VerifyError
from policyc.compiler.ir.graph import Graph, Rate
from policyc.compiler.ir.ops import OP_TABLE
from policyc.compiler.ir.types import DType
from policyc.compiler.ir.verify import check_ops

VIEWS = frozenset(name for name, row in OP_TABLE.items() if row.view)
FUSED = VIEWS | frozenset(
    {
        "linear",
        "gated_linear",
        "rms_norm",
        "layer_norm",
        "add_norm",
        "rope",
        "attention",
        "embedding",
        "patchify",
        "compact_rows",
        "count_true",
        "concat",
        "pointwise",
        "table_row",
    }
)
SCHEDULED = (FUSED | {"split_linear", "cast"}) - {"table_row"}


def is_traced(graph: Graph) -> None:
    """Anything that has a row."""
    check_ops(graph, frozenset(OP_TABLE), "traced")


def is_fused(graph: Graph) -> None:
    """Only ops that have kernels, views, and rows of the schedule's tables."""
    check_ops(graph, FUSED, "fused")


def is_scheduled(graph: Graph) -> None:
    """Ready for lowering: no loop, no float64, and only ops that have kernels."""
    check_ops(graph, SCHEDULED, "scheduled")
    for stage in graph.stages:
        if stage.loop is not None:
            raise VerifyError(f"stage {stage.name} still has its loop at level scheduled")
        if stage.rate in (Rate.LOAD, Rate.REPORT):
            continue
        for node in stage.nodes:
            for value in node.outputs:
                if value.type.dtype is DType.F64:
                    raise VerifyError(f"stage {stage.name}: {value} is float64 at level scheduled")
