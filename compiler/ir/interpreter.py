"""The numpy interpreter: runs a graph, or one stage of it, as the op table's references say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from policyc.compiler.ir.errors import InterpretError
from policyc.compiler.ir.graph import (
    Graph,
    Node,
    Rate,
    Stage,
    is_weight,
    stage_definitions,
    stage_uses,
)
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.types import Array, TensorType

WeightSource = Callable[[str], Array]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Runs `graph` on the host.

    `weights` gives the array of a weight by name; a bfloat16 weight may come as float32 with the
    same values, which saves converting it at every use.
    """

    graph: Graph
    weights: WeightSource
    observe: Callable[[str, Array], None] | None = field(default=None)

    def run(self, inputs: Mapping[str, Array], wanted: Sequence[str] = ()) -> dict[str, Array]:
        """Evaluate the graph; each value is let go after its last reader.

        Args:
            inputs: an array for every graph input that a needed stage reads, of exactly its type.
            wanted: names of values to return; the graph's outputs if empty. A report stage runs
                only if one of its values is wanted.

        Raises:
            InterpretError: an input is missing or has another type; a wanted name is unknown.
        """
        names = tuple(wanted) or self.graph.outputs
        values: dict[str, Array] = {}
        for item in self.graph.inputs:
            name = item.value.name
            if name in inputs:
                values[name] = _checked(name, inputs[name], item.value.type)
        stages = [stage for stage in self.graph.stages if self._is_needed(stage, names)]
        for index, stage in enumerate(stages):
            later = {*names, *(name for item in stages[index + 1 :] for name in stage_uses(item))}
            self._run_stage(stage, values, later)
            for name in values.keys() - later:
                del values[name]
        missing = [name for name in names if name not in values]
        if missing:
            raise InterpretError(f"no value {missing}; the graph yields {self.graph.outputs}")
        return {name: values[name] for name in names}

    def run_stage(self, stage: Stage, values: dict[str, Array]) -> None:
        """Evaluate one stage; reads from and adds to `values`, by name, and keeps every value."""
        own = (value.name for value in stage_definitions(stage))
        self._run_stage(stage, values, {*own, *stage_uses(stage)})

    def _run_stage(self, stage: Stage, values: dict[str, Array], later: Set[str]) -> None:
        """Evaluate one stage; only values in `later` are sure to outlive it."""
        loop = stage.loop
        if loop is None:
            self._run_nodes(stage.nodes, values, later)
            return
        later = {*later, *(name for name in stage_uses(stage) if name in values)}
        for carry in loop.carries:
            values[carry.inner.name] = self._operand(carry.initial, values)
        collected: dict[str, list[Array]] = {item.stacked.name: [] for item in loop.collects}
        yields = {carry.next for carry in loop.carries} | {item.each for item in loop.collects}
        for step in range(loop.count):
            values[loop.index.name] = np.asarray(step, np.int32)
            self._run_nodes(stage.nodes, values, later | yields)
            for item in loop.collects:
                collected[item.stacked.name].append(values[item.each])
            following = [values[carry.next] for carry in loop.carries]
            for carry, array in zip(loop.carries, following, strict=True):
                values[carry.inner.name] = array
        for carry in loop.carries:
            values[carry.final.name] = values[carry.inner.name]
        for name, arrays in collected.items():
            values[name] = np.stack(arrays)

    def _is_needed(self, stage: Stage, wanted: Sequence[str]) -> bool:
        if stage.rate is not Rate.REPORT:
            return True
        produced = {value.name for node in stage.nodes for value in node.outputs}
        return not produced.isdisjoint(wanted)

    def _run_nodes(
        self, nodes: tuple[Node, ...], values: dict[str, Array], later: Set[str]
    ) -> None:
        last = _last_readers(nodes)
        for index, node in enumerate(nodes):
            operands = tuple(self._operand(name, values) for name in node.inputs)
            results = row_of(node.op).reference(node.attrs, operands)
            for value, array in zip(node.outputs, results, strict=True):
                rounded = array.astype(value.type.dtype.numpy, copy=False)
                values[value.name] = rounded
                if self.observe is not None:
                    self.observe(value.name, rounded)
            for name in last[index]:
                if name not in later:
                    values.pop(name, None)

    def _operand(self, name: str, values: dict[str, Array]) -> Array:
        if is_weight(name):
            return self.weights(name)
        array = values.get(name)
        if array is None:
            raise InterpretError(f"value {name} is read before anything gave it")
        return array


def _last_readers(nodes: tuple[Node, ...]) -> list[list[str]]:
    """For each node its operands and results that no node after it reads."""
    last: dict[str, int] = {}
    for index, node in enumerate(nodes):
        last.update((value.name, index) for value in node.outputs)
        last.update((name, index) for name in node.inputs)
    found: list[list[str]] = [[] for _ in nodes]
    for name, index in last.items():
        found[index].append(name)
    return found


def _checked(name: str, array: Array, expected: TensorType) -> Array:
    if array.dtype != expected.dtype.numpy or array.shape != expected.shape:
        got = f"{array.dtype}[{','.join(map(str, array.shape))}]"
        raise InterpretError(f"input {name} is {got}, expected {expected}")
    return array
