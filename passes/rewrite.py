"""What rewriting passes share: who makes and reads each value, and replacing nodes.

A pass matches patterns on the graph as it came, asks for nodes to be replaced, and calls
`finish`. A replacement keeps the names of the values that are read elsewhere, so nothing else
changes; what the rewrite leaves without a reader goes away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from policyc.compiler.ir.graph import (
    Graph,
    Loop,
    Node,
    Rate,
    Stage,
    Value,
    is_weight,
    stage_uses,
    value_types,
)
from policyc.compiler.ir.ops import infer
from policyc.compiler.ir.types import TensorType

LOAD_STAGE = "load"


@dataclass(slots=True)
class Rewrite:
    """A graph in work. Positions and readers are those of the graph as it came."""

    graph: Graph
    types: dict[str, TensorType] = field(init=False)
    _producers: dict[str, Node] = field(init=False)
    _readers: dict[str, list[Node]] = field(init=False)
    _outside: set[str] = field(init=False)
    _position: dict[str, tuple[int, int]] = field(init=False)
    _replaced: dict[int, tuple[Node, ...]] = field(init=False, default_factory=dict)
    _claimed: set[int] = field(init=False, default_factory=set)
    _load: list[Node] = field(init=False, default_factory=list)
    _count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.types = value_types(self.graph)
        self._producers = {}
        self._readers = {}
        self._position = {}
        self._outside = {*self.graph.outputs, *self.graph.named}
        for stage_index, stage in enumerate(self.graph.stages):
            for index, node in enumerate(stage.nodes):
                for value in node.outputs:
                    self._producers[value.name] = node
                    self._position[value.name] = (stage_index, index)
                for name in node.inputs:
                    self._readers.setdefault(name, []).append(node)
            self._outside.update(loop_uses(stage))

    def nodes(self, *ops: str) -> Iterator[tuple[Stage, Node]]:
        """Nodes of these ops outside the load and report stages, in order."""
        for stage in self.graph.stages:
            if stage.rate in (Rate.LOAD, Rate.REPORT):
                continue
            for node in stage.nodes:
                if node.op in ops:
                    yield stage, node

    def producer(self, name: str) -> Node | None:
        """The node that makes the value; None for inputs, weights and loop values."""
        return self._producers.get(name)

    def made_by(self, name: str, *ops: str) -> Node | None:
        """The node that makes the value if it is one of these ops and not claimed by a rewrite."""
        node = self._producers.get(name)
        return node if node is not None and node.op in ops and not self.is_claimed(node) else None

    def readers(self, name: str) -> list[Node]:
        return self._readers.get(name, [])

    def is_read_outside(self, name: str) -> bool:
        """Is the value an output, a named value or read by a loop?"""
        return name in self._outside

    def only_reader(self, name: str) -> Node | None:
        """The one node that reads the value, if nothing else does."""
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and name not in self._outside else None

    def is_load(self, name: str) -> bool:
        """Is the value known once the checkpoint is?"""
        if is_weight(name):
            return True
        position = self._position.get(name)
        if position is None:
            return False
        return self.graph.stages[position[0]].rate is Rate.LOAD

    def is_before(self, name: str, node: Node) -> bool:
        """Is the value defined before the node runs?"""
        position = self._position.get(name)
        return position is None or position < self._position[node.outputs[0].name]

    def is_claimed(self, node: Node) -> bool:
        return id(node) in self._claimed

    def fresh(self) -> str:
        """A name that no value has; the driver renumbers it."""
        self._count += 1
        return f"%r{self._count}"

    def make(
        self, op: str, inputs: tuple[str, ...], attrs: object, origin: str, *names: str
    ) -> Node:
        """A node with inferred types; its results get `names`, or fresh ones."""
        node = Node(op=op, inputs=inputs, outputs=(), attrs=attrs, origin=origin)
        kinds = infer(node, tuple(self.types[name] for name in inputs))
        labels = names or tuple(self.fresh() for _ in kinds)
        pairs = zip(labels, kinds, strict=True)
        outputs = tuple(Value(name=name, type=kind) for name, kind in pairs)
        self.types.update((value.name, value.type) for value in outputs)
        return replace(node, outputs=outputs)

    def load(self, op: str, inputs: tuple[str, ...], attrs: object, origin: str) -> str:
        """Compute a value once per checkpoint; returns its name."""
        node = self.make(op, inputs, attrs, origin)
        self._load.append(node)
        return node.output.name

    def replace(self, node: Node, *nodes: Node, claims: tuple[Node, ...] = ()) -> None:
        """Put `nodes` where `node` stands; `claims` are further nodes that no other match may
        use."""
        assert not self.is_claimed(node), f"{node.op} is rewritten twice"
        self._replaced[id(node)] = nodes
        self._claimed.update((id(node), *(id(item) for item in claims)))

    def finish(self) -> Graph:
        """The rewritten graph, or the same object if nothing was replaced."""
        if not self._replaced and not self._load:
            return self.graph
        stages = [self._rebuilt(stage) for stage in self.graph.stages]
        return remove_dead(self.graph.with_stages(with_load_nodes(tuple(stages), self._load)))

    def _rebuilt(self, stage: Stage) -> Stage:
        nodes = [new for node in stage.nodes for new in self._replaced.get(id(node), (node,))]
        return replace(stage, nodes=tuple(nodes))


def with_load_nodes(stages: tuple[Stage, ...], nodes: list[Node]) -> tuple[Stage, ...]:
    """The stages with nodes appended to the load stage, which is made if there is none."""
    if not nodes:
        return stages
    if stages and stages[0].rate is Rate.LOAD:
        first = replace(stages[0], nodes=(*stages[0].nodes, *nodes))
        return (first, *stages[1:])
    return (Stage(name=LOAD_STAGE, rate=Rate.LOAD, nodes=tuple(nodes)), *stages)


def remove_dead(graph: Graph) -> Graph:
    """Drop nodes, collected loop values, weights and stages that nothing reads."""
    wanted = {*graph.outputs, *graph.named}
    stages: list[Stage] = []
    for stage in reversed(graph.stages):
        kept = _live_stage(stage, wanted)
        if kept.nodes or kept.loop is not None:
            stages.append(kept)
    weights = tuple(weight for weight in graph.weights if weight.name in wanted)
    return replace(graph, stages=tuple(reversed(stages)), weights=weights)


def _live_stage(stage: Stage, wanted: set[str]) -> Stage:
    loop = stage.loop
    if loop is not None:
        collects = tuple(item for item in loop.collects if item.stacked.name in wanted)
        loop = replace(loop, collects=collects)
        wanted.update(loop_uses(replace(stage, loop=loop)))
    nodes: list[Node] = []
    for node in reversed(stage.nodes):
        if any(value.name in wanted for value in node.outputs):
            nodes.append(node)
            wanted.update(node.inputs)
    return replace(stage, nodes=tuple(reversed(nodes)), loop=loop)


def loop_uses(stage: Stage) -> tuple[str, ...]:
    """Names that the stage's loop reads beside its nodes."""
    loop: Loop | None = stage.loop
    return () if loop is None else stage_uses(replace(stage, nodes=()))
