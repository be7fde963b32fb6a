"""The memory planner: lifetimes, arenas, alignment, and how tightly it packs."""

from __future__ import annotations

import pytest

from policyc.compiler.ir.errors import VerifyError
from policyc.compiler.ir.graph import Graph, Loop, Rate
from policyc.compiler.ir.types import DType
from policyc.passes.check_plan import check_plan
from policyc.passes.plan_memory import plan_memory
from tests.passes.graphs import graph, reshaped, rms_norm, row, sliced, stage, toy_graph, value

F32 = DType.F32


def chain(length: int) -> Graph:
    """x -> %0 -> %1 ... -> y, each of 4 KiB."""
    names = ["x", *(f"%{index}" for index in range(length)), "y"]
    nodes = tuple(
        rms_norm(before, value(after, F32, 16, 64))
        for before, after in zip(names, names[1:], strict=False)
    )
    return graph(
        inputs=((value("x", F32, 16, 64), Rate.STEP),),
        weights=(),
        stages=(stage("step", Rate.STEP, *nodes),),
        outputs=("y",),
    )


def test_toy_graph() -> None:
    plan = plan_memory(toy_graph(), {"%1": 1000})
    check_plan(toy_graph(), plan)
    assert set(plan.arenas) == {"observation", "step"}
    assert plan.values["x"].arena == "observation"
    assert plan.values["noise"].arena == "step"
    assert plan.values["qkv"].arena == "observation"
    assert "v" not in plan.values
    assert plan.scratch["%1"].size == 1000
    places = [*plan.values.values(), *plan.scratch.values()]
    assert all(place.offset % 256 == 0 for place in places)
    assert all(place.offset + place.size <= plan.arenas[place.arena] for place in places)


def test_counters_lie_apart_from_everything_else() -> None:
    plan = plan_memory(toy_graph(), counters={"%1": 4, "%4": 600})
    check_plan(toy_graph(), plan)
    assert plan.arenas["counters"] == 256 + 768
    assert [(c.arena, c.offset, c.size) for c in plan.counters.values()] == [
        ("counters", 0, 4),
        ("counters", 256, 600),
    ]
    assert "counters" not in plan_memory(toy_graph()).arenas


def test_a_long_chain_alternates_between_two_buffers_beside_its_input() -> None:
    plan = plan_memory(chain(40))
    check_plan(chain(40), plan)
    assert plan.arenas["step"] == 3 * 16 * 64 * 4


def test_values_read_by_a_faster_stage_live_to_the_end() -> None:
    before = stage(
        "observe",
        Rate.OBSERVATION,
        rms_norm("x", value("kept", F32, 16, 64)),
        rms_norm("x", value("%0", F32, 16, 64)),
        rms_norm("%0", value("%1", F32, 16, 64)),
    )
    first = stage("step", Rate.STEP, rms_norm("kept", value("y", F32, 16, 64)))
    late = stage("late", Rate.OBSERVATION, rms_norm("x", value("z", F32, 16, 64)))
    whole = graph(
        ((value("x", F32, 16, 64), Rate.OBSERVATION),), (), (before, first, late), ("y", "z")
    )
    plan = plan_memory(whole)
    check_plan(whole, plan)
    assert plan.values["z"].offset != plan.values["kept"].offset


def test_view_extends_its_base_and_owns_nothing() -> None:
    nodes = (
        rms_norm("x", value("%0", F32, 16, 64)),
        sliced("%0", value("%1", F32, 8, 64), 0, 8, 16),
        rms_norm("x", value("%2", F32, 16, 64)),
        rms_norm("%1", value("y", F32, 8, 64)),
    )
    whole = graph(
        ((value("x", F32, 16, 64), Rate.STEP),), (), (stage("s", Rate.STEP, *nodes),), ("y",)
    )
    plan = plan_memory(whole)
    check_plan(whole, plan)
    assert set(plan.values) == {"x", "%0", "%2", "y"}
    assert plan.values["%0"].offset != plan.values["%2"].offset


def test_copied_view_owns_memory_and_frees_its_base() -> None:
    nodes = (
        rms_norm("x", value("%0", F32, 16, 64)),
        reshaped("%0", value("%1", F32, 8, 128)),
        rms_norm("%1", value("%2", F32, 8, 128)),
        rms_norm("%2", value("y", F32, 8, 128)),
    )
    whole = graph(
        ((value("x", F32, 16, 64), Rate.STEP),), (), (stage("s", Rate.STEP, *nodes),), ("y",)
    )
    plan = plan_memory(whole, copies=frozenset({"%1"}))
    check_plan(whole, plan)
    assert plan.values["%2"].offset == plan.values["%0"].offset


def test_view_of_a_weight_owns_nothing() -> None:
    nodes = (
        row("@table", value("%0", F32, 1, 64), 3),
        rms_norm("%0", value("y", F32, 1, 64)),
    )
    whole = graph((), (value("@table", F32, 8, 64),), (stage("s", Rate.STEP, *nodes),), ("y",))
    plan = plan_memory(whole)
    check_plan(whole, plan)
    assert set(plan.values) == {"y"}


def test_the_arena_is_no_larger_than_its_largest_moment() -> None:
    """Beside the input (256 bytes, always alive), everything fits below the largest value."""
    nodes = (
        rms_norm("x", value("big", F32, 64, 64)),
        rms_norm("x", value("wall", F32, 16, 64)),
        rms_norm("x", value("small", F32, 8, 64)),
        rms_norm("small", value("%0", F32, 8, 64)),
        rms_norm("wall", value("y", F32, 16, 64)),
    )
    whole = graph(
        ((value("x", F32, 1, 64), Rate.STEP),), (), (stage("s", Rate.STEP, *nodes),), ("y", "%0")
    )
    plan = plan_memory(whole)
    check_plan(whole, plan)
    assert plan.arenas["step"] == (64 + 1) * 256
    assert plan == plan_memory(whole)


def test_loop_is_refused() -> None:
    loop = Loop(count=10, index=value("%i", DType.I32))
    looped = stage("denoise", Rate.STEP)
    whole = graph((), (), (type(looped)(name="d", rate=Rate.STEP, nodes=(), loop=loop),), ())
    with pytest.raises(VerifyError, match="stage d: a loop of 10 steps; expected none"):
        plan_memory(whole)


def test_load_stage_is_refused() -> None:
    load = stage("load", Rate.LOAD, rms_norm("@w", value("%0", F32, 1, 64)))
    whole = graph((), (value("@w", F32, 1, 64),), (load,), ())
    with pytest.raises(VerifyError, match="Materialise the weights first"):
        plan_memory(whole)
