"""Takes the candidates of a problem from parameters to launches, as a bundle's would be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from policyc.backends.assemble import assemble_bucket, assemble_plan
from policyc.backends.errors import LoweringError
from policyc.backends.kernel_cache import CompiledKernel
from policyc.backends.lower import LoweredCall, distinct_sources, lower_calls
from policyc.backends.source import KernelSource
from policyc.backends.views import Placement
from policyc.compiler.ir.graph import Graph, Node, Value, is_weight
from policyc.compiler.ir.memory import ALIGNMENT_BYTES, Allocation, MemoryPlan
from policyc.compiler.ir.selection import Candidate, Decision, Parameters, Problem, Selection
from policyc.compiler.ir.types import TensorType
from policyc.compiler.tuning.operands import extent
from policyc.compiler.tuning.problems import TuningProblem
from policyc.kernels.families import family_of
from policyc.kernels.spec import Family
from policyc.profiles.profile import Profile
from policyc.runtime_min.plan import Plan

ARENA = "tuning"
BUCKET = 1

Compile = Callable[[Mapping[str, KernelSource]], Mapping[str, CompiledKernel | str]]
"""Sources by kernel id -> machine code, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the buffers of a problem lie in one arena, and its weights in one region.

    Behind the buffers come `scratch` and `counters`, of the largest size that a candidate needs;
    counters are zero before a candidate's first run, as they are at load.
    """

    arena_bytes: int
    buffers: Mapping[str, Allocation]
    scratch: Allocation
    counters: Allocation
    weights: Mapping[str, Value]
    weight_offsets: Mapping[str, int]
    region_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredCandidate:
    """A candidate as kernel calls, or the reason why it has none."""

    parameters: Parameters
    calls: tuple[LoweredCall, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCandidate:
    """A candidate as a plan of one bucket and its machine code by file name, or the reason."""

    parameters: Parameters
    plan: Plan | None = None
    cubins: Mapping[str, bytes] | None = None
    failure: str = ""


def layout_of(problem: TuningProblem) -> Layout:
    """Buffers one after another; weights in a region of their own, which is copied whole."""
    work = problem.work
    sizes: dict[str, int] = {}
    weights: dict[str, Value] = {}
    for view in (*work.operands, *work.results):
        count = extent(view)
        if is_weight(view.base):
            known = weights.get(view.base)
            count = max(count, known.type.element_count if known else 0)
            weights[view.base] = Value(name=view.base, type=TensorType(view.dtype, (count,)))
        else:
            size = count * view.dtype.size_bytes
            sizes[view.base] = max(size, sizes.get(view.base, 0))
    offsets, end = _packed(sizes)
    weight_offsets, region = _packed({name: item.type.size_bytes for name, item in weights.items()})
    scratch = _largest(problem, lambda family: family.scratch_bytes)
    counters = _largest(problem, lambda family: family.counter_bytes)
    behind = end + _aligned(scratch)
    return Layout(
        arena_bytes=behind + _aligned(counters),
        buffers={
            name: Allocation(arena=ARENA, offset=offsets[name], size=size)
            for name, size in sizes.items()
        },
        scratch=Allocation(arena=ARENA, offset=end, size=scratch),
        counters=Allocation(arena=ARENA, offset=behind, size=counters),
        weights=weights,
        weight_offsets=weight_offsets,
        region_bytes=region,
    )


def lower_candidates(problem: TuningProblem, profile: Profile) -> tuple[LoweredCandidate, ...]:
    """Kernel calls of every candidate, in order of parameters."""
    ordered = sorted(problem.candidates, key=lambda item: item.parameters)
    return tuple(_lower(problem, candidate, profile) for candidate in ordered)


def sources_of(candidates: Iterable[LoweredCandidate]) -> dict[str, KernelSource]:
    """What has to be compiled for candidates, by kernel id."""
    return distinct_sources([call for item in candidates for call in item.calls])


def make_ready(
    candidate: LoweredCandidate,
    layout: Layout,
    compiled: Mapping[str, CompiledKernel | str],
    profile: Profile,
) -> ReadyCandidate:
    """The candidate's plan, if all its kernels compiled and fit the device."""
    parameters = candidate.parameters
    if candidate.failure:
        return ReadyCandidate(parameters=parameters, failure=candidate.failure)
    kernels: dict[str, CompiledKernel] = {}
    for call in candidate.calls:
        product = compiled[call.source.id]
        if isinstance(product, str):
            return ReadyCandidate(parameters=parameters, failure=product)
        kernels[call.source.id] = product
    name = candidate.calls[0].work.name
    memory = MemoryPlan(
        arenas={ARENA: layout.arena_bytes},
        values=layout.buffers,
        scratch={name: layout.scratch},
        counters={name: layout.counters},
    )
    graph = Graph(inputs=(), weights=tuple(layout.weights.values()), stages=(), outputs=())
    nowhere = Placement(views={}, copies=frozenset(), work=())
    try:
        bucket = assemble_bucket(graph, nowhere, memory, candidate.calls, kernels)
        plan = assemble_plan(profile, kernels, {BUCKET: bucket})
    except LoweringError as error:
        return ReadyCandidate(parameters=parameters, failure=str(error))
    cubins = {plan.kernels[name].file: kernel.cubin for name, kernel in kernels.items()}
    return ReadyCandidate(parameters=parameters, plan=plan, cubins=cubins)


def _lower(problem: TuningProblem, candidate: Candidate, profile: Profile) -> LoweredCandidate:
    parameters = candidate.parameters
    try:
        calls = lower_calls((problem.work,), _selection(problem, parameters), profile, family_of)
    except LoweringError as error:
        return LoweredCandidate(parameters=parameters, failure=str(error))
    return LoweredCandidate(parameters=parameters, calls=calls)


def _selection(problem: TuningProblem, parameters: Parameters) -> Selection:
    decision = Decision(
        problem=Problem(op=problem.work.node.op, key=problem.key),
        parameters=parameters,
        reason="a candidate to measure",
        microseconds=None,
        uses=problem.uses,
        rejected=(),
    )
    return Selection(decisions={problem.key: decision}, nodes={problem.work.name: problem.key})


_Size = Callable[[Node, tuple[TensorType, ...], Parameters], int]


def _largest(problem: TuningProblem, size: Callable[[Family], _Size]) -> int:
    """The most bytes that a candidate asks for."""
    work = problem.work
    asked = size(family_of(work.node.op))
    return max(
        (asked(work.node, work.operand_types, item.parameters) for item in problem.candidates),
        default=0,
    )


def _packed(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Aligned offsets, and the end."""
    offsets: dict[str, int] = {}
    end = 0
    for name, size in sizes.items():
        offsets[name] = end
        end += _aligned(size)
    return offsets, end


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
