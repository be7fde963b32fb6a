"""Named intermediates: the part of the report stages that a request needs, run on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from policyc.compiler.ir.graph import (
    Graph,
    Node,
    Rate,
    Stage,
    is_weight,
    stage_inputs,
)
from policyc.compiler.ir.interpreter import Interpreter, WeightSource
from policyc.compiler.ir.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Stages to run, cut down to what was asked for, and the values they read."""

    stages: tuple[Stage, ...]
    sources: tuple[str, ...]

    @classmethod
    def of(cls, graph: Graph, wanted: Sequence[str]) -> Report:
        """What has to be computed on the host to have the values `wanted`.

        Values that no report stage yields are among the sources.
        """
        needed = dict.fromkeys(wanted)
        stages: list[Stage] = []
        for stage in reversed(graph.stages):
            if stage.rate is not Rate.REPORT:
                continue
            part = _needed_part(stage, set(needed))
            if not part.nodes:
                continue
            stages.append(part)
            produced = {value.name for node in part.nodes for value in node.outputs}
            needed = dict.fromkeys(name for name in needed if name not in produced)
            needed.update(dict.fromkeys(stage_inputs(part)))
        return cls(stages=tuple(reversed(stages)), sources=tuple(needed))

    def evaluate(
        self, graph: Graph, weights: WeightSource, sources: Mapping[str, Array]
    ) -> dict[str, Array]:
        """All values by name, the sources included."""
        values = dict(sources)
        interpreter = Interpreter(graph, weights)
        for stage in self.stages:
            interpreter.run_stage(stage, values)
        return values


def _needed_part(stage: Stage, wanted: set[str]) -> Stage:
    assert stage.loop is None, f"report stage {stage.name} has a loop"
    kept: list[Node] = []
    for node in reversed(stage.nodes):
        if any(value.name in wanted for value in node.outputs):
            kept.append(node)
            wanted.update(name for name in node.inputs if not is_weight(name))
    return replace(stage, nodes=tuple(reversed(kept)))
