"""The order in which the device runs a scheduled graph."""

from __future__ import annotations

from dataclasses import dataclass

from policyc.compiler.ir.errors import VerifyError
from policyc.compiler.ir.graph import Graph, Node, Rate, Stage, is_weight

DEVICE_RATES = (Rate.PROMPT, Rate.OBSERVATION, Rate.STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A node and the stage that it stands in."""

    node: Node
    stage: Stage

    @property
    def name(self) -> str:
        """The name of the node's first result, which names the node."""
        return self.node.outputs[0].name


def device_sequence(graph: Graph) -> tuple[Position, ...]:
    """The nodes of the stages prompt, observation and step, in order of execution.

    Raises:
        VerifyError: a loop remains, or a load stage whose results are not weights yet.
    """
    positions: list[Position] = []
    for stage in graph.stages:
        if stage.loop is not None:
            raise VerifyError(
                f"stage {stage.name}: a loop of {stage.loop.count} steps; expected none on the way "
                "to the device. Run unroll_solver first."
            )
        if stage.rate is Rate.LOAD and stage.nodes:
            raise VerifyError(
                f"stage {stage.name}: {len(stage.nodes)} nodes of rate load; expected none on the "
                "way to the device. Materialise the weights first."
            )
        if stage.rate in DEVICE_RATES:
            positions.extend(Position(node=node, stage=stage) for node in stage.nodes)
    return tuple(positions)


def host_reads(graph: Graph) -> tuple[str, ...]:
    """Values of the device that are read after the last launch.

    Graph outputs, named values and what the report stages read: in order, without repeats, without
    weights and graph inputs.
    """
    made = {value.name for item in device_sequence(graph) for value in item.node.outputs}
    names = [*graph.outputs, *graph.named]
    for stage in graph.stages:
        if stage.rate is Rate.REPORT:
            names.extend(name for node in stage.nodes for name in node.inputs)
    return tuple(dict.fromkeys(name for name in names if name in made and not is_weight(name)))
