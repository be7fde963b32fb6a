"""Views that a report stage reads are repeated there."""

from __future__ import annotations

import numpy as np

from policyc.backends.views import resolve_views
from policyc.compiler.ir.graph import Graph, Rate
from policyc.compiler.ir.interpreter import Interpreter
from policyc.compiler.ir.types import DType
from policyc.compiler.ir.verify import verify
from policyc.passes.localize_report_views import localize_report_views
from tests.passes.graphs import graph, reshaped, rms_norm, sliced, stage, toy_graph, value

F32 = DType.F32


def reporting() -> Graph:
    observe = stage(
        "observe",
        Rate.OBSERVATION,
        rms_norm("x", value("%0", F32, 4, 8)),
        sliced("%0", value("%1", F32, 4, 4), 1, 4, 8),
        reshaped("%1", value("%2", F32, 4, 2, 2)),
        rms_norm("%2", value("y", F32, 4, 2, 2)),
    )
    report = stage(
        "report",
        Rate.REPORT,
        rms_norm("%2", value("r", F32, 4, 2, 2)),
        rms_norm("%1", value("s", F32, 4, 4)),
    )
    return graph(
        ((value("x", F32, 4, 8), Rate.OBSERVATION),), (), (observe, report), ("y",), ("r", "s")
    )


def test_chain_of_views_is_repeated_once() -> None:
    before = reporting()
    after = localize_report_views(before)
    verify(after, "localize_report_views")
    assert after.stages[0] == before.stages[0]
    assert [node.op for node in after.stages[1].nodes] == [
        "slice",
        "reshape",
        "rms_norm",
        "rms_norm",
    ]
    assert after.stages[1].nodes[0].inputs == ("%0",)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    results = [
        Interpreter(item, lambda name: x).run({"x": x}, ("y", "r", "s")) for item in (before, after)
    ]
    for name, array in results[0].items():
        assert np.array_equal(array, results[1][name])


def test_nothing_is_copied_for_the_report_afterwards() -> None:
    assert resolve_views(reporting()).copies == {"%1"}
    assert resolve_views(localize_report_views(reporting())).copies == frozenset()


def test_second_run_and_nothing_to_do_return_the_same_object() -> None:
    once = localize_report_views(reporting())
    assert localize_report_views(once) is once
    toy = toy_graph()
    assert localize_report_views(toy) is toy
