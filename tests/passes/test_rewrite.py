"""What rewriting passes share."""

from __future__ import annotations

import pytest

from policyc.compiler.ir.attributes import NoAttributes, ScalarAttributes
from policyc.compiler.ir.errors import TypeMismatch
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.verify import verify
from policyc.passes.rewrite import Rewrite, loop_uses, remove_dead
from tests.compiler.ir.texts import SOLVER


def test_makers_readers_and_positions() -> None:
    rewrite = Rewrite(parse_graph(SOLVER))
    mul = next(node for _, node in rewrite.nodes("mul"))
    assert rewrite.producer("%4") is mul and rewrite.producer("x") is None
    assert rewrite.made_by("%4", "mul") is mul and rewrite.made_by("%4", "add") is None
    assert rewrite.only_reader("%0") is mul and rewrite.only_reader("%5") is None
    assert rewrite.is_read_outside("%5") and not rewrite.is_read_outside("%4")
    assert rewrite.is_before("%0", mul) and not rewrite.is_before("%5", mul)
    assert rewrite.is_load("@w") and not rewrite.is_load("%0") and not rewrite.is_load("x")
    assert [node.op for _, node in rewrite.nodes("permute")] == [], "the report is left alone"


def test_nothing_asked_gives_the_same_object() -> None:
    graph = parse_graph(SOLVER)
    assert Rewrite(graph).finish() is graph


def test_a_replacement_keeps_the_name_and_drops_what_is_left_unread() -> None:
    graph = parse_graph(SOLVER)
    rewrite = Rewrite(graph)
    mul = next(node for _, node in rewrite.nodes("mul"))
    doubled = rewrite.load("mul_scalar", ("@table",), ScalarAttributes(value=2.0), "origin")
    row = rewrite.make("table_row", (doubled, "%1"), NoAttributes(), "")
    new = rewrite.make("add", (row.output.name, "%2"), NoAttributes(), "", "%4")
    rewrite.replace(mul, row, new)
    result = rewrite.finish()
    verify(result)
    ops = {stage.name: [node.op for node in stage.nodes] for stage in result.stages}
    assert ops == {
        "load": ["mul_scalar"],
        "denoise": ["table_row", "add", "add"],
        "report": ["permute"],
    }
    assert [weight.name for weight in result.weights] == ["@table"]


def test_a_node_is_rewritten_once() -> None:
    rewrite = Rewrite(parse_graph(SOLVER))
    mul = next(node for _, node in rewrite.nodes("mul"))
    rewrite.replace(mul, mul)
    assert rewrite.made_by("%4", "mul") is None
    with pytest.raises(AssertionError, match="mul is rewritten twice"):
        rewrite.replace(mul)


def test_a_node_that_its_row_refuses_is_not_made() -> None:
    rewrite = Rewrite(parse_graph(SOLVER))
    with pytest.raises(TypeMismatch, match="shapes do not broadcast"):
        rewrite.make("add", ("%0", "@w"), NoAttributes(), "")


def test_a_loop_reads_its_carried_and_collected_values() -> None:
    graph = parse_graph(SOLVER)
    assert loop_uses(graph.stages[0]) == () and loop_uses(graph.stages[1]) == ("noise", "%5", "%5")
    assert remove_dead(graph) == graph
