"""The plan checker: random plans of the planner pass, every damaged plan is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyc.compiler.ir.graph import Graph, Rate
from policyc.compiler.ir.memory import Allocation, MemoryPlan
from policyc.compiler.ir.types import DType
from policyc.passes.check_plan import PlanCheckError, check_plan
from policyc.passes.plan_memory import plan_memory
from tests.passes.graphs import graph, rms_norm, sliced, stage, toy_graph, value

F32 = DType.F32


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    """Up to 24 nodes over two rates, a third of them slices; operands are any earlier value."""
    sizes = {"x": draw(st.integers(2, 40))}
    stages = []
    for name, rate in (("observe", Rate.OBSERVATION), ("step", Rate.STEP)):
        nodes = []
        for index in range(draw(st.integers(1, 12))):
            operand = draw(st.sampled_from(sorted(sizes)))
            result, rows = f"{name}{index}", sizes[operand]
            if draw(st.integers(0, 2)) == 0:
                stop = draw(st.integers(1, rows))
                nodes.append(sliced(operand, value(result, F32, stop, 64), 0, 0, stop))
                sizes[result] = stop
            else:
                nodes.append(rms_norm(operand, value(result, F32, rows, 64)))
                sizes[result] = rows
        stages.append(stage(name, rate, *nodes))
    outputs = tuple(draw(st.lists(st.sampled_from(sorted(sizes)), min_size=1, unique=True)))
    x = value("x", F32, sizes["x"], 64)
    return graph(((x, Rate.OBSERVATION),), (), tuple(stages), outputs)


@settings(max_examples=60, deadline=None)
@given(random_graphs(), st.integers(0, 2000))
def test_plans_of_the_planner_pass(whole: Graph, scratch: int) -> None:
    names = {node.outputs[0].name: scratch for node in whole.nodes() if node.op == "rms_norm"}
    check_plan(whole, plan_memory(whole, names))


def moved(plan: MemoryPlan, name: str, **changes: object) -> MemoryPlan:
    place = replace(plan.values[name], **changes)  # type: ignore[arg-type]
    return replace(plan, values={**plan.values, name: place})


@pytest.fixture
def plan() -> MemoryPlan:
    return plan_memory(toy_graph(), {"%1": 512})


def refuses(plan: MemoryPlan, message: str) -> None:
    with pytest.raises(PlanCheckError, match=message):
        check_plan(toy_graph(), plan)


def test_output_on_top_of_its_operand(plan: MemoryPlan) -> None:
    offset = plan.values["x"].offset
    refuses(moved(plan, "%0", offset=offset), "%0 rms_norm, during the launch: x is not intact")


def test_value_on_top_of_one_that_a_view_still_needs(plan: MemoryPlan) -> None:
    offset = plan.values["qkv"].offset
    refuses(moved(plan, "%1", offset=offset), "qkv is not intact: byte .* overwritten by %1")


def test_two_results_on_one_another(plan: MemoryPlan) -> None:
    refuses(moved(plan, "%3", offset=plan.values["sum"].offset), "sum is not intact")


def test_report_input_overwritten(plan: MemoryPlan) -> None:
    refuses(
        moved(plan, "actions", offset=plan.values["sum"].offset),
        "after the last launch, for stage report: sum is not intact",
    )


def test_graph_input_overwritten(plan: MemoryPlan) -> None:
    refuses(
        moved(plan, "actions", offset=plan.values["noise"].offset),
        "for the caller: noise is not intact",
    )


def test_workspace_on_top_of_an_operand(plan: MemoryPlan) -> None:
    place = plan.values["%0"]
    scratch = {"%1": Allocation(arena=place.arena, offset=place.offset, size=512)}
    refuses(replace(plan, scratch=scratch), "%0 is not intact: byte .* by workspace of %1")


def test_counters_on_one_another_elsewhere_and_of_nobody(plan: MemoryPlan) -> None:
    def counting(*names: str, arena: str = "counters") -> MemoryPlan:
        counters = {name: Allocation(arena=arena, offset=0, size=4) for name in names}
        return replace(plan, counters=counters, arenas={**plan.arenas, "counters": 256})

    check_plan(toy_graph(), counting("%1"))
    refuses(
        counting("%1", "%4"), "counters of %1 is not intact: byte 0 was overwritten by counters"
    )
    refuses(counting("%1", arena="step"), "counters of %1: in arena step, expected counters")
    refuses(counting("nobody"), "counters of nobody: no such node")


def test_misaligned(plan: MemoryPlan) -> None:
    refuses(moved(plan, "%0", offset=plan.values["%0"].offset + 16), "not a multiple of 256")


def test_outside_the_arena(plan: MemoryPlan) -> None:
    refuses(moved(plan, "%0", offset=1 << 20), "takes bytes 1048576..1050624 of arena observation")
    refuses(moved(plan, "%0", offset=-256), "takes bytes -256")


def test_wrong_size_and_wrong_arena(plan: MemoryPlan) -> None:
    refuses(moved(plan, "%0", size=64), "%0 has 64 bytes in arena observation, expected 2048")
    refuses(
        moved(plan, "%0", arena="step"), "2048 bytes in arena step, expected 2048 in observation"
    )


def test_missing_allocation_and_missing_arena(plan: MemoryPlan) -> None:
    values = {name: place for name, place in plan.values.items() if name != "sum"}
    refuses(
        replace(plan, values=values), "stage step, .* sum has no allocation|sum has no allocation"
    )
    arenas = {"observation": plan.arenas["observation"]}
    refuses(replace(plan, arenas=arenas), "lies in arena step, there is none")


def test_value_read_before_it_is_written() -> None:
    whole = toy_graph()
    observe, step, report = whole.stages
    swapped = replace(observe, nodes=(observe.nodes[2], *observe.nodes[:2], observe.nodes[3]))
    broken = whole.with_stages((swapped, step, report))
    with pytest.raises(PlanCheckError, match="%1 linear: reads %0, which nothing wrote before"):
        check_plan(broken, plan_memory(whole))
