"""Let the report stage make its own views."""

from __future__ import annotations

from dataclasses import replace

from policyc.compiler.ir.graph import Graph, Node, Rate, Stage
from policyc.compiler.ir.ops import row_of
from policyc.passes.rewrite import Rewrite


def clone_report_views(graph: Graph) -> Graph:
    """Copy into the report stage the views that it reads, so that it reads whole buffers.

    Before:    stage prefix { k = slice(%qk) };  stage report { y = permute(k) }
    After:     stage prefix { k = slice(%qk) };  stage report { %0 = slice(%qk);  y = permute(%0) }
    Requires:  nothing.
    Ensures:   no report stage reads a view of another stage.
    Numerics:  exact.
    """
    rewrite = Rewrite(graph)
    stages = tuple(
        _with_own_views(stage, rewrite) if stage.rate is Rate.REPORT else stage
        for stage in graph.stages
    )
    return graph if stages == graph.stages else graph.with_stages(stages)


def _with_own_views(stage: Stage, rewrite: Rewrite) -> Stage:
    own = {value.name for node in stage.nodes for value in node.outputs}
    copies: dict[str, str] = {}
    nodes: list[Node] = []
    for node in stage.nodes:
        inputs = tuple(
            name if name in own else _own_view(name, rewrite, copies, nodes) for name in node.inputs
        )
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return replace(stage, nodes=tuple(nodes))


def _own_view(name: str, rewrite: Rewrite, copies: dict[str, str], nodes: list[Node]) -> str:
    """The name under which the report stage has the value; appends the views it needs to
    `nodes`."""
    producer = rewrite.producer(name)
    if producer is None or not row_of(producer.op).view:
        return name
    if name not in copies:
        source = _own_view(producer.inputs[0], rewrite, copies, nodes)
        copies[name] = rewrite.fresh()
        value = replace(producer.output, name=copies[name])
        nodes.append(replace(producer, inputs=(source,), outputs=(value,)))
    return copies[name]
