"""What a graph derives from its stages."""

from __future__ import annotations

import dataclasses

import pytest

from policyc.compiler.ir.graph import (
    Rate,
    is_weight,
    stage_definitions,
    stage_inputs,
    stage_outputs,
    stage_uses,
    value_types,
)
from policyc.compiler.ir.parser import parse_graph
from tests.compiler.ir.texts import SOLVER, TWO_RESULTS


def test_rates_are_ordered_from_slow_to_fast() -> None:
    assert [rate.text for rate in sorted(Rate)] == [
        *("load", "prompt", "observation", "step", "report")
    ]


def test_a_loop_stage_defines_its_loop_values_too() -> None:
    stage = parse_graph(SOLVER).stage("denoise")
    names = [value.name for value in stage_definitions(stage)]
    assert names == ["%1", "%2", "%3", "%4", "%5", "actions", "states"]
    assert stage_uses(stage) == ("noise", "@table", "%1", "%0", "%3", "%2", "%4", "%5", "%5")
    assert stage_inputs(stage) == ("noise", "%0")


def test_a_stage_yields_what_others_or_the_caller_read() -> None:
    graph = parse_graph(SOLVER)
    outputs = {s.name: [v.name for v in stage_outputs(graph, s)] for s in graph.stages}
    assert outputs == {"encode": ["%0"], "denoise": ["actions", "states"], "report": ["seen"]}


def test_types_of_every_value() -> None:
    types = {name: str(kind) for name, kind in value_types(parse_graph(SOLVER)).items()}
    assert types["x"] == "f32[2,4]" and types["@table"] == "f32[3,4]"
    assert types["%1"] == "i32[]" and types["states"] == "f32[3,2,4]" and len(types) == 13


def test_origin_is_no_part_of_equality() -> None:
    graph = parse_graph(SOLVER)
    moved = parse_graph(SOLVER.replace("  # encoder.proj", "  # other"))
    assert moved == graph
    assert next(moved.nodes()).origin == "other"


def test_the_only_result_of_a_node_with_two_is_an_error() -> None:
    node = next(parse_graph(TWO_RESULTS).nodes())
    with pytest.raises(AssertionError, match="add_norm has 2 results"):
        _ = node.output


def test_an_unknown_stage_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="no stage decode; there are .'encode', 'denoise', 'report'"):
        parse_graph(SOLVER).stage("decode")


def test_graphs_cannot_be_changed() -> None:
    graph = parse_graph(SOLVER)
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.outputs = ()  # type: ignore[misc]


def test_weights_are_told_by_their_names() -> None:
    assert is_weight("@a.b") and not is_weight("%0") and not is_weight("noise")
