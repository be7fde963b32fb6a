"""The toy graph taken through selection and planning for one device, and a generated kernel."""

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

PROGRAM = """
import triton
import triton.language as tl

@triton.jit
def scale(x, y, factor, absent, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < N).to(tl.float32) * factor, mask=i < N)

@triton.jit
def broken(x, N: tl.constexpr):
    tl.store(x, no_such_thing)

@triton.jit
def mapped(m, y):
    i = tl.arange(0, 16)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(y + i, m.load([0, 0]))
"""
SCALE = KernelSource(
    kernel="program:scale",
    signature=(("x", "*bf16"), ("y", "*fp32"), ("factor", "fp32")),
    divisible=("x", "y"),
    constants=(("N", 100), ("BLOCK", 128), ("absent", None)),
    num_warps=2,
    num_stages=1,
    pdl=False,
    program=PROGRAM,
)


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
