"""The toy graph, taken through selection and planning for one device."""

from __future__ import annotations

from dataclasses import dataclass

from policyc.backends.kernel_cache import CompiledKernel, TensorMapLayout
from policyc.backends.lower import LoweredCall, lower_calls
from policyc.backends.offers import Families, collect_offers, scratch_sizes
from policyc.backends.source import KernelSource
from policyc.backends.views import Placement, resolve_views
from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.memory import MemoryPlan
from policyc.kernels.families import family_of
from policyc.passes.plan_memory import plan_memory
from policyc.passes.select_kernels import select_kernels
from policyc.profiles.loader import load_profile
from policyc.profiles.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    graph: Graph
    device: Profile
    placement: Placement
    memory: MemoryPlan
    calls: tuple[LoweredCall, ...]


def lowered(graph: Graph, families: Families = family_of) -> Lowered:
    device = load_profile("h200")
    placement = resolve_views(graph)
    offers = collect_offers(placement.work, device, families)
    selection = select_kernels(graph, offers, {})
    scratch = scratch_sizes(placement.work, selection, families)
    return Lowered(
        graph=graph,
        device=device,
        placement=placement,
        memory=plan_memory(graph, scratch, placement.copies),
        calls=lower_calls(placement.work, selection, device, families),
    )


def pretend_compiled(source: KernelSource) -> CompiledKernel:
    """What compiling would give, with parameters packed one after another."""
    offset, parameters = 0, []
    for size in source.parameter_sizes:
        offset = -(-offset // min(size, 64)) * min(size, 64)
        parameters.append((offset, size))
        offset += size
    maps = sum(kind.startswith("tensordesc") for _, kind in source.signature)
    return CompiledKernel(
        cubin=source.id.encode(),
        entry=source.kernel.partition(":")[2],
        shared_bytes=0,
        block_threads=32 * source.num_warps,
        pdl=source.pdl,
        parameters=tuple(parameters),
        tensor_maps=(TensorMapLayout(box=(16, 64), swizzle=3, element_type=10),) * maps,
    )
