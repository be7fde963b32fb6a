from __future__ import annotations

from dataclasses import replace

import numpy as np

from policyc.compiler.ir.attributes import ScalarAttributes
from policyc.compiler.ir.graph import Graph, Node, Value
from policyc.compiler.ir.types import Array
from policyc.runtime_min.report import Report
from tests.runtime_min.bundles import graph


def no_weights(name: str) -> Array:
    raise AssertionError(f"weight {name} is not needed")


def scaled(source: str, result: str, factor: float) -> Node:
    kind = next(v.type for n in graph(1).nodes() for v in n.outputs if v.name == "hidden")
    return Node(
        op="mul_scalar",
        inputs=(source,),
        outputs=(Value(name=result, type=kind),),
        attrs=ScalarAttributes(value=factor),
    )


def with_two_report_stages() -> Graph:
    one = graph(1)
    first = replace(one.stages[2], nodes=(*one.stages[2].nodes, scaled("noise", "louder", 3.0)))
    second = replace(first, name="again", nodes=(scaled("doubled", "fourfold", 2.0),))
    return one.with_stages((*one.stages[:2], first, second))


def test_only_what_was_asked_for_is_needed() -> None:
    report = Report.of(with_two_report_stages(), ("louder",))
    assert report.sources == ("noise",)
    assert [[node.output.name for node in stage.nodes] for stage in report.stages] == [["louder"]]


def test_stages_feed_each_other() -> None:
    report = Report.of(with_two_report_stages(), ("fourfold",))
    assert report.sources == ("hidden",)
    hidden = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    values = report.evaluate(graph(1), no_weights, {"hidden": hidden})
    np.testing.assert_array_equal(values["fourfold"], 4 * hidden)


def test_values_of_the_device_are_sources_themselves() -> None:
    report = Report.of(graph(1), ("hidden",))
    assert (report.sources, report.stages) == (("hidden",), ())
