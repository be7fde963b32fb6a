"""From calls to the plan: byte offsets, tensor maps, buffers for the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyc.backends.assemble import assemble_bucket, assemble_plan, kernel_file
from policyc.backends.errors import LoweringError
from policyc.backends.lower import distinct_sources
from policyc.backends.source import source_of
from policyc.compiler.ir.memory import Allocation
from policyc.compiler.ir.types import DType
from policyc.kernels.spec import Descriptor, KernelCall, View, counters_view
from policyc.runtime_min.plan import (
    Bucket,
    BufferArgument,
    DescriptorArgument,
    FloatArgument,
    NullArgument,
    Plan,
    WeightArgument,
    plan_text,
)
from policyc.runtime_min.plan_reader import read_plan
from tests.backends.fixtures import Lowered, lowered, pretend_compiled
from tests.passes.graphs import toy_graph


def bucket_of(result: Lowered) -> Bucket:
    kernels = {
        name: pretend_compiled(item) for name, item in distinct_sources(result.calls).items()
    }
    return assemble_bucket(result.graph, result.placement, result.memory, result.calls, kernels)


def plan_of(result: Lowered) -> Plan:
    kernels = {
        name: pretend_compiled(item) for name, item in distinct_sources(result.calls).items()
    }
    return assemble_plan(result.device, kernels, {1: bucket_of(result)})


def test_the_reader_reads_the_plan_back() -> None:
    plan = plan_of(lowered(toy_graph()))
    text = plan_text(plan)
    assert read_plan(text.encode(), "plan/90.json") == plan
    assert text == plan_text(plan_of(lowered(toy_graph())))
    assert plan.compute_capability == 90
    assert {kernel.file for kernel in plan.kernels.values()} == {
        kernel_file(90, name) for name in plan.kernels
    }


def test_inputs_and_values() -> None:
    result = lowered(toy_graph())
    bucket = bucket_of(result)
    assert set(bucket.inputs) == {"x", "noise"}
    assert set(bucket.values) == {"actions", "sum"}
    place = result.memory.values["sum"]
    buffer = bucket.values["sum"]
    assert (buffer.arena, buffer.offset) == (place.arena, place.offset)
    assert (buffer.dtype, buffer.shape) == (DType.F32, (16, 64))


def test_arguments_of_a_norm_on_a_view() -> None:
    result = lowered(toy_graph())
    launch = bucket_of(result).launches[3]
    values = result.memory.values
    assert (launch.node, launch.stage, launch.grid) == ("sum", "step", (16, 1, 1))
    assert launch.args == (
        BufferArgument(arena="observation", offset=values["qkv"].offset + 32 * 2),
        BufferArgument(arena="step", offset=values["noise"].offset),
        BufferArgument(arena="step", offset=values["sum"].offset),
        BufferArgument(arena="step", offset=values["%3"].offset),
        FloatArgument(value=1e-6),
        NullArgument(),
        NullArgument(),
    )


def test_counters_have_an_arena_of_their_own() -> None:
    result = lowered(toy_graph())
    view = counters_view(result.calls[0].work.node, 8)
    counted = {"qkv": Allocation(arena="counters", offset=512, size=8)}
    memory = replace(
        result.memory, counters=counted, arenas={**result.memory.arenas, "counters": 768}
    )
    result = with_call(
        replace(result, memory=memory),
        arguments=(*result.calls[0].call.arguments, ("counter_pointer", view)),
    )
    launch = bucket_of(result).launches[0]
    assert BufferArgument(arena="counters", offset=512) in launch.args


def with_call(result: Lowered, **changes: object) -> Lowered:
    """The result with its first call changed."""
    first = result.calls[0]
    call = replace(first.call, **changes)  # type: ignore[arg-type]
    return replace(result, calls=(replace(first, call=call), *result.calls[1:]))


def mapped(result: Lowered, view: View) -> Lowered:
    """The first call with one descriptor, on `view`, compiled as such."""
    call = KernelCall(
        kernel="linear:f",
        arguments=(("map", Descriptor(view=view, block=(16, 64))),),
        constants=(),
        grid=(1, 1, 1),
        num_warps=4,
        num_stages=1,
        pdl=False,
    )
    first = replace(result.calls[0], call=call, source=source_of(call))
    return replace(result, calls=(first,))


def test_tensor_map_on_a_weight() -> None:
    view = View(base="@in", offset=64, dtype=DType.BF16, shape=(95, 64), strides=(64, 1))
    argument = bucket_of(mapped(lowered(toy_graph()), view)).launches[0].args[0]
    assert argument == DescriptorArgument(
        base=WeightArgument(weight="in", offset=128),
        dtype=DType.BF16,
        shape=(95, 64),
        strides=(64, 1),
        box=(16, 64),
        swizzle=3,
        element_type=10,
    )


@pytest.mark.parametrize(
    ("offset", "strides"), [(4, (64, 1)), (0, (60, 1)), (0, (1, 2))], ids=["base", "row", "inner"]
)
def test_tensor_maps_need_alignment(offset: int, strides: tuple[int, int]) -> None:
    view = View(base="@in", offset=offset, dtype=DType.BF16, shape=(8, 32), strides=strides)
    with pytest.raises(LoweringError, match="argument map of linear:f: offset .* needs unit inner"):
        bucket_of(mapped(lowered(toy_graph()), view))


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("@in", "@in: a view .* ends at byte 12290, the tensor has 12288"),
        ("x", "the tensor has 2048"),
    ],
)
def test_views_stay_inside_their_tensor(base: str, message: str) -> None:
    view = View(base=base, offset=1, dtype=DType.BF16, shape=(96, 64), strides=(64, 1))
    with pytest.raises(LoweringError, match=message):
        bucket_of(with_call(lowered(toy_graph()), arguments=(("out", view),)))


def test_what_the_host_reads_must_be_contiguous() -> None:
    result = lowered(toy_graph())
    views = {
        **result.placement.views,
        "sum": replace(result.placement.views["sum"], strides=(1, 16)),
    }
    with pytest.raises(LoweringError, match="sum: the host reads shape .* expected a contiguous"):
        bucket_of(replace(result, placement=replace(result.placement, views=views)))


def test_too_much_shared_memory() -> None:
    result = lowered(toy_graph())
    kernels = {
        name: replace(pretend_compiled(item), shared_bytes=300_000)
        for name, item in distinct_sources(result.calls).items()
    }
    with pytest.raises(
        LoweringError, match="needs 300000 bytes of shared memory, a block has 232448"
    ):
        assemble_plan(result.device, kernels, {})
