"""The numpy interpreter: runs a graph, or one stage of it, as the op table's references say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from policyc.compiler.ir.errors import InterpretError
from policyc.compiler.ir.graph import Graph, Node, Rate, Stage, is_weight
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.types import Array, DType, TensorType

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
        """Evaluate the graph.

        Args:
            inputs: an array for every graph input that a needed stage reads, of exactly its type.
            wanted: names of values to return; the graph's outputs if empty. A report stage runs
                only if
                one of its values is wanted.

        Raises:
            InterpretError: an input is missing or has another type; a wanted name is unknown.
        """
        names = tuple(wanted) or self.graph.outputs
        values: dict[str, Array] = {}
        for item in self.graph.inputs:
            name = item.value.name
            if name in inputs:
                values[name] = _checked(name, inputs[name], item.value.type)
        for stage in self.graph.stages:
            if self._is_needed(stage, names):
                self.run_stage(stage, values)
        missing = [name for name in names if name not in values]
        if missing:
            raise InterpretError(f"no value {missing}; the graph yields {self.graph.outputs}")
        return {name: values[name] for name in names}

    def run_stage(self, stage: Stage, values: dict[str, Array]) -> None:
        """Evaluate one stage; reads from and adds to `values`, by name."""
        loop = stage.loop
        if loop is None:
            self._run_nodes(stage.nodes, values)
            return
        for carry in loop.carries:
            values[carry.inner.name] = values[carry.initial]
        collected: dict[str, list[Array]] = {item.stacked.name: [] for item in loop.collects}
        for step in range(loop.count):
            values[loop.index.name] = np.asarray(step, np.int32)
            self._run_nodes(stage.nodes, values)
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

    def _run_nodes(self, nodes: tuple[Node, ...], values: dict[str, Array]) -> None:
        for node in nodes:
            operands = tuple(self._operand(name, values) for name in node.inputs)
            results = row_of(node.op).reference(node.attrs, operands)
            for value, array in zip(node.outputs, results, strict=True):
                rounded = array.astype(value.type.dtype.numpy, copy=False)
                values[value.name] = rounded
                if self.observe is not None:
                    self.observe(value.name, rounded)

    def _operand(self, name: str, values: dict[str, Array]) -> Array:
        if is_weight(name):
            return self.weights(name)
        array = values.get(name)
        if array is None:
            raise InterpretError(f"value {name} is read before anything gave it")
        return array


def _checked(name: str, array: Array, expected: TensorType) -> Array:
    got = TensorType(DType.of(array.dtype), array.shape)
    if got != expected:
        raise InterpretError(f"input {name} is {got}, expected {expected}")
    return array
