"""Every rule of the verifier has a text that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyc.compiler.ir.attributes import NoAttributes
from policyc.compiler.ir.errors import VerifyError
from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.text import print_graph
from policyc.compiler.ir.types import DType, TensorType
from policyc.compiler.ir.verify import check_ops, verify
from tests.compiler.ir.texts import SOLVER, TWO_RESULTS


@pytest.mark.parametrize("text", [SOLVER, TWO_RESULTS])
def test_well_formed_graphs_pass(text: str) -> None:
    verify(parse_graph(text))


def changed(**parts: object) -> Graph:
    return replace(parse_graph(SOLVER), **parts)  # type: ignore[arg-type]


def with_stage(index: int, **parts: object) -> Graph:
    graph = parse_graph(SOLVER)
    stages = list(graph.stages)
    stages[index] = replace(stages[index], **parts)  # type: ignore[arg-type]
    return graph.with_stages(tuple(stages))


def with_node(stage: int, index: int, **parts: object) -> Graph:
    nodes = list(parse_graph(SOLVER).stages[stage].nodes)
    nodes[index] = replace(nodes[index], **parts)  # type: ignore[arg-type]
    return with_stage(stage, nodes=tuple(nodes))


def with_loop(**parts: object) -> Graph:
    loop = parse_graph(SOLVER).stages[1].loop
    assert loop is not None
    return with_stage(1, loop=replace(loop, **parts))  # type: ignore[arg-type]


def with_carry(**parts: object) -> Graph:
    loop = parse_graph(SOLVER).stages[1].loop
    assert loop is not None
    return with_loop(carries=(replace(loop.carries[0], **parts),))  # type: ignore[arg-type]


SMALL = TensorType(DType.F32, (2, 3))
GRAPH = parse_graph(SOLVER)
STAGES = GRAPH.stages
ENCODE, MUL = STAGES[0].nodes[0], STAGES[1].nodes[1]
LOOP = STAGES[1].loop
assert LOOP is not None
CARRY, COLLECT = LOOP.carries[0], LOOP.collects[0]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (with_node(0, 0, outputs=(replace(ENCODE.output, name="x"),)), "value x is defined twice"),
        (changed(weights=(*GRAPH.weights, GRAPH.inputs[0].value)), "value x is defined twice"),
        (
            changed(weights=(*GRAPH.weights, replace(GRAPH.weights[0], name="w"))),
            "weight w: expected a name that starts with @",
        ),
        (with_stage(1, name="encode"), "stage names repeat: .'encode', 'encode', 'report'."),
        (
            changed(stages=(STAGES[1], STAGES[0], STAGES[2])),
            "stage encode of rate observation stands after denoise of rate step; expected slower",
        ),
        (
            changed(inputs=tuple(replace(i, rate=STAGES[1].rate) for i in GRAPH.inputs)),
            "stage encode of rate observation reads x of the faster rate step",
        ),
        (with_node(0, 0, inputs=("z", "@w")), "%0 linear: reads z, which nothing before defines"),
        (with_node(1, 1, inputs=("%5", "%3")), "%4 mul: reads %5, which nothing before defines"),
        (
            with_node(0, 0, inputs=("x", "@table")),
            r"%0 linear: states f32\[2,4\], expected f32\[2,3\] from its operands",
        ),
        (with_node(0, 0, inputs=("x",)), "%0 linear: 1 operands, expected 2"),
        (
            with_node(0, 0, attrs=NoAttributes()),
            "linear has attributes NoAttributes, expected Line",
        ),
        (with_node(0, 0, op="conv"), "no op conv; known: add, add_norm"),
        (with_loop(count=0), "stage denoise: loop count is 0, expected 1 or more"),
        (
            with_loop(index=replace(LOOP.index, type=TensorType(DType.I64, ()))),
            r"loop index is %1: i64\[\], expected i32\[\]",
        ),
        (with_carry(initial="gone"), "stage denoise: its loop reads gone, which nothing defines"),
        (with_carry(next="gone"), "stage denoise: its loop reads gone, which nothing defines"),
        (
            with_carry(next="%3"),
            r"loop value %3 is f32\[1,4\], expected f32\[2,4\]",
        ),
        (
            with_carry(final=replace(CARRY.final, type=SMALL)),
            r"loop value %2 is f32\[2,4\], expected f32\[2,3\]",
        ),
        (
            with_loop(collects=(replace(COLLECT, each="gone"),)),
            "stage denoise: its loop reads gone, which nothing defines",
        ),
        (
            with_loop(collects=(replace(COLLECT, each="%3"),)),
            r"collects states: f32\[3,2,4\], expected f32\[3,1,4\]",
        ),
        (changed(outputs=("result",)), "output result is not a value of the graph"),
        (changed(named=("velocity",)), "output velocity is not a value of the graph"),
        (changed(outputs=()), "the graph has no output"),
    ],
)
def test_a_broken_rule_is_named(graph: Graph, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(graph)


def test_the_message_shows_the_pass_the_origin_and_the_nodes_before() -> None:
    with pytest.raises(VerifyError) as caught:
        verify(with_node(1, 2, inputs=("%2", "@w")), "fuse_everything")
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("after fuse_everything, stage denoise, %5 add: shapes do not")
    assert [line.split(" = ")[-1] for line in lines[1:-1]] == [
        *("table_row(@table, %1)", "mul(%0, %3)", "add(%2, @w)")
    ]
    assert lines[-1].startswith("  ^ shapes do not broadcast")
    with pytest.raises(VerifyError, match="Origin encoder.proj"):
        verify(with_node(0, 0, inputs=("x",)))


def test_a_graph_that_prints_can_be_verified_after_parsing() -> None:
    broken = with_node(0, 0, inputs=("x", "@table"))
    with pytest.raises(VerifyError):
        verify(parse_graph(print_graph(broken)))


def test_ops_outside_load_and_report_belong_to_the_level() -> None:
    ops = frozenset({"linear", "table_row", "mul", "add"})
    check_ops(GRAPH, ops, "toy")
    with pytest.raises(VerifyError, match="%4 mul: op mul does not belong to level toy: add, lin"):
        check_ops(GRAPH, ops - {"mul"}, "toy")
