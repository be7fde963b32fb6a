"""Printing and renumbering."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyc.compiler.ir.attributes import (
    AttentionAttributes,
    CastAttributes,
    FillAttributes,
    Instruction,
    LinearAttributes,
    NoAttributes,
    PointwiseAttributes,
    ShapeAttributes,
)
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.text import (
    print_attributes,
    print_graph,
    print_node,
    print_stage,
    renumber,
)
from policyc.compiler.ir.types import DType
from tests.compiler.ir.texts import SOLVER, TWO_RESULTS


@pytest.mark.parametrize("text", [SOLVER, TWO_RESULTS])
def test_printed_text_is_the_text_that_was_parsed(text: str) -> None:
    assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        (NoAttributes(), ""),
        (LinearAttributes(), ""),
        (LinearAttributes(bias=True, dtype=DType.BF16), "{bias=true, dtype=bf16}"),
        (CastAttributes(dtype=DType.F32), "{dtype=f32}"),
        (ShapeAttributes(shape=(2, 3)), "{shape=[2, 3]}"),
        (ShapeAttributes(shape=()), "{shape=[]}"),
        (AttentionAttributes(scale=0.1), "{scale=0.1}"),
        (
            FillAttributes(shape=(1,), value=1e-30, dtype=DType.F32),
            "{shape=[1], value=1e-30, dtype=f32}",
        ),
        (
            PointwiseAttributes(
                program=(
                    Instruction(op="mul", arguments=(0, 1)),
                    Instruction(op="add_scalar", arguments=(2,), value=-1.5),
                ),
                results=(3,),
                dtypes=(DType.BF16,),
            ),
            "{program=[mul(0, 1), add_scalar(2; -1.5)], results=[3], dtypes=[bf16]}",
        ),
    ],
)  # fmt: skip
def test_attributes_print_where_they_differ_from_their_default(
    attributes: object, text: str
) -> None:
    assert print_attributes(attributes) == text


def test_a_stage_and_a_node_print_alone() -> None:
    graph = parse_graph(SOLVER)
    stage = graph.stage("encode")
    line = "%0: f32[2,4] = linear(x, @w) {activation=silu}  # encoder.proj"
    assert print_node(stage.nodes[0]) == line
    head = "stage encode rate=observation (x: f32[2,4]) -> (%0: f32[2,4]) {"
    assert print_stage(graph, stage) == f"{head}\n  {line}\n}}"


def test_renumbering_numbers_in_order_of_definition() -> None:
    graph = parse_graph(SOLVER)
    assert renumber(graph) is graph
    shuffled = SOLVER
    for old, new in (("%0", "%r"), ("%1", "%0"), ("%5", "%1.x"), ("%r", "%5")):
        shuffled = shuffled.replace(old, new)
    other = parse_graph(shuffled)
    assert other != graph and renumber(other) == graph


def test_renumbering_keeps_named_values_and_weights() -> None:
    graph = parse_graph(SOLVER.replace("%4", "%9"))
    stages = graph.stages
    renumbered = renumber(graph.with_stages(stages))
    assert print_graph(renumbered) == SOLVER
    assert renumber(replace(graph, named=())).outputs == ("actions",)
