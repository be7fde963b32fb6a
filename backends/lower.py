"""Turn a scheduled graph into kernel calls.

The way of a graph: `resolve_views` -> `collect_offers` -> select_kernels -> `scratch_sizes` and
`counter_sizes` -> plan_memory -> `lower_calls` -> `compile_kernels` -> `assemble_bucket`, one
bucket a batch size -> `assemble_plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policyc.backends.errors import LoweringError
from policyc.backends.offers import Families
from policyc.backends.source import KernelSource, source_of
from policyc.backends.views import Work
from policyc.compiler.ir.selection import Selection
from policyc.compiler.ir.types import DType
from policyc.kernels.families import family_of
from policyc.kernels.layout import LayoutError
from policyc.kernels.spec import Device, KernelCall, View

SCRATCH_PREFIX = "scratch:"
"""Of the base of a workspace; no value has a colon in its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredCall:
    """A kernel call, the source it needs compiled, and the node it came from."""

    call: KernelCall
    source: KernelSource
    work: Work


def lower_calls(
    work: Sequence[Work], selection: Selection, device: Device, families: Families = family_of
) -> tuple[LoweredCall, ...]:
    """The kernel calls of a graph, in order on one stream.

    Raises:
        LoweringError: strides that the chosen kernel cannot address, or an argument it cannot take.
    """
    calls: list[LoweredCall] = []
    for item in work:
        family, parameters = families(item.node.op), selection.parameters_of(item.name)
        size = family.scratch_bytes(item.node, item.operand_types, parameters)
        scratch = _scratch_view(item.name, size) if size else None
        try:
            made = family.calls(item.node, item.operands, item.results, scratch, parameters, device)
        except LayoutError as error:
            raise LoweringError(f"{item.place}: {error}") from error
        calls += [LoweredCall(call=call, source=source_of(call), work=item) for call in made]
    return tuple(calls)


def distinct_sources(calls: Sequence[LoweredCall]) -> dict[str, KernelSource]:
    """What has to be compiled, by kernel id, in order of first use."""
    return {item.source.id: item.source for item in calls}


def _scratch_view(name: str, size: int) -> View:
    return View(base=SCRATCH_PREFIX + name, offset=0, dtype=DType.U8, shape=(size,), strides=(1,))
