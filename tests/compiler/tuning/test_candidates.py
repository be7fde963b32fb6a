from __future__ import annotations

from dataclasses import replace

from policyc.backends.kernel_cache import CompiledKernel
from policyc.compiler.ir.selection import Candidate
from policyc.compiler.tuning.candidates import (
    BUCKET,
    layout_of,
    lower_candidates,
    make_ready,
    sources_of,
)
from policyc.runtime_min.plan import BufferArgument, WeightArgument
from tests.compiler.tuning.cases import PROFILE, ROWS, WIDTH, pretend, problem


def test_buffers_and_weights_are_laid_out_apart() -> None:
    layout = layout_of(problem())
    assert set(layout.buffers) == {"x", "y"} and set(layout.weights) == {"@scale"}
    assert layout.region_bytes == 4 * WIDTH
    x, y = layout.buffers["x"], layout.buffers["y"]
    assert (x.offset, x.size, y.offset % 256) == (0, 4 * ROWS * WIDTH, 0)
    assert x.offset + x.size <= y.offset and y.offset + y.size <= layout.arena_bytes


def test_a_ready_candidate_has_the_launches_of_a_plan() -> None:
    lowered = lower_candidates(problem(), PROFILE)
    layout, compiled = layout_of(problem()), pretend(sources_of(lowered))
    ready = make_ready(lowered[0], layout, compiled, PROFILE)
    assert not ready.failure and ready.plan is not None and ready.cubins is not None
    (launch,) = ready.plan.buckets[BUCKET].launches
    pointers = [item for item in launch.args if isinstance(item, BufferArgument | WeightArgument)]
    assert WeightArgument(weight="scale", offset=0) in pointers
    assert set(ready.cubins) == {kernel.file for kernel in ready.plan.kernels.values()}


def test_failures_keep_their_reasons() -> None:
    lowered = lower_candidates(problem(), PROFILE)
    layout, compiled = layout_of(problem()), dict(pretend(sources_of(lowered)))
    first = lowered[0].calls[0].source.id
    missing = {**compiled, first: "did not compile"}
    assert make_ready(lowered[0], layout, missing, PROFILE).failure == "did not compile"
    product = compiled[first]
    assert isinstance(product, CompiledKernel)
    large = {**compiled, first: replace(product, shared_bytes=10**6)}
    assert "shared memory" in make_ready(lowered[0], layout, large, PROFILE).failure
    broken = replace(lowered[0], failure="strides")
    assert make_ready(broken, layout, compiled, PROFILE).failure == "strides"


def test_candidates_come_in_order_of_parameters() -> None:
    given = problem()
    shuffled: tuple[Candidate, ...] = given.candidates[::-1]
    ordered = [
        item.parameters for item in lower_candidates(replace(given, candidates=shuffled), PROFILE)
    ]
    assert ordered == sorted(ordered)
