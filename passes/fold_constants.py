"""Evaluate what depends on the checkpoint and the schedule alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from policyc.compiler.ir.attributes import NoAttributes
from policyc.compiler.ir.graph import Graph, Loop, Node, Rate, Stage, Value, is_weight, value_types
from policyc.compiler.ir.ops import infer, row_of
from policyc.compiler.ir.types import TensorType
from policyc.passes.rewrite import loop_uses, remove_dead, with_load_nodes


def fold_constants(graph: Graph) -> Graph:
    """Turn work of a loop that depends on weights and the step number alone into tables of all
    steps.

    Before:    %t = table_row(@time, %step);  %c = silu(linear(%t, @w));  %y = mul(x, %c)
    After:     stage load { %T = silu(linear(@time, @w)) }      a row a step
               %c = table_row(%T, %step);  %y = mul(x, %c)
    Requires:  hoist_invariants has run: what depends on weights alone is in the load stage.
    Ensures:   in a loop, only table_row reads the step number, except through ops that are not
               rowwise.
    Numerics:  exact: the same products and sums in float32, a row at a time.
    """
    load: list[Node] = []
    stages = []
    for stage in graph.stages:
        folded = _Folding(graph, stage).run(load) if stage.loop is not None else stage
        stages.append(folded)
    if not load:
        return graph
    return remove_dead(graph.with_stages(with_load_nodes(tuple(stages), load)))


@dataclass(slots=True)
class _Folding:
    """The fold of one loop stage; `tables` maps a value of a step to its table of all steps."""

    graph: Graph
    stage: Stage
    types: dict[str, TensorType] = field(init=False)
    at_load: set[str] = field(init=False)
    tables: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.types = value_types(self.graph)
        self.at_load = {
            value.name
            for stage in self.graph.stages
            if stage.rate is Rate.LOAD
            for node in stage.nodes
            for value in node.outputs
        }

    def run(self, load: list[Node]) -> Stage:
        """The stage with its foldable part replaced; appends the tables' nodes to `load`."""
        loop = self.stage.loop
        assert loop is not None
        kept: list[Node] = []
        for node in self.stage.nodes:
            table = self._tabulated(node, loop)
            if table is None:
                kept.append(node)
            else:
                load.extend(table)
        rows = self._rows_read(loop, kept)
        return replace(self.stage, nodes=(*rows, *kept))

    def _tabulated(self, node: Node, loop: Loop) -> tuple[Node, ...] | None:
        """Nodes that compute the table of this node's result, or None if it must stay."""
        if node.op == "table_row" and node.inputs[1] == loop.index.name:
            if not self._is_constant(node.inputs[0]):
                return None
            self.tables[node.output.name] = node.inputs[0]
            return ()
        per_step = [name for name in node.inputs if name in self.tables]
        constant = all(name in self.tables or self._is_constant(name) for name in node.inputs)
        if not per_step or not constant or not self._keeps_rows(node, per_step):
            return None
        inputs = tuple(self.tables.get(name, name) for name in node.inputs)
        kinds = infer(node, tuple(self.types[name] for name in inputs))
        expected = tuple((loop.count, *value.type.shape[1:]) for value in node.outputs)
        if tuple(kind.shape for kind in kinds) != expected:
            return None
        outputs = []
        for value, kind in zip(node.outputs, kinds, strict=True):
            name = f"{value.name}.steps"
            self.tables[value.name] = name
            self.types[name] = kind
            outputs.append(Value(name=name, type=kind))
        return (replace(node, inputs=inputs, outputs=tuple(outputs)),)

    def _is_constant(self, name: str) -> bool:
        return is_weight(name) or name in self.at_load

    def _keeps_rows(self, node: Node, per_step: list[str]) -> bool:
        """Does row i of the result depend on row i of the step's operands alone?"""
        if any(value.type.shape[:1] != (1,) for value in node.outputs):
            return False
        # Broadcasting aligns last axes: only at equal ranks does the axis of steps stay the first.
        rank = node.outputs[0].type.rank
        if any(self.types[name].rank != rank for name in per_step):
            return False
        axis = getattr(node.attrs, "axis", None)
        return row_of(node.op).rowwise or (node.op in ("slice", "concat") and axis not in (None, 0))

    def _rows_read(self, loop: Loop, kept: list[Node]) -> list[Node]:
        """A table_row for each folded value that the rest of the stage reads."""
        read = {name for node in kept for name in node.inputs} | set(loop_uses(self.stage))
        rows = []
        for name, table in self.tables.items():
            if name not in read:
                continue
            kind = self.types[table]
            rows.append(
                Node(
                    op="table_row",
                    inputs=(table, loop.index.name),
                    outputs=(Value(name=name, type=kind.with_shape((1, *kind.shape[1:]))),),
                    attrs=NoAttributes(),
                    origin=self._origin(name),
                )
            )
        return rows

    def _origin(self, name: str) -> str:
        nodes = (n for n in self.stage.nodes if any(v.name == name for v in n.outputs))
        return next(nodes).origin
