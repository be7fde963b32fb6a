"""Evaluates the load stage once: its results become the weights of the bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

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
from policyc.compiler.ir.interpreter import Interpreter
from policyc.compiler.ir.types import Array
from policyc.compiler.row_blocks import RowBlocks

SMALL_BYTES = 1 << 20
"""Results up to this size are kept for the other weights that are made of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """The weights of a bundle: `values` by name (with `@`), and `blocks`, which computes one of
    them, some rows at a time."""

    values: tuple[Value, ...]
    blocks: Callable[[str], Iterator[Array]]

    def produce(self, name: str) -> Array:
        """A weight as a whole."""
        blocks = tuple(self.blocks(name))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def materialise(graph: Graph, read_weight: Callable[[str], Array]) -> tuple[Graph, PackedWeights]:
    """Replace the load stage by weights.

    Args:
        graph: level scheduled, with its load stage.
        read_weight: gives a tensor of the checkpoint, or a constant of the adapter, by name
            without `@`;
            an array of the declared type, or bfloat16 in place of float32.

    Returns:
        The graph without load stage, and its weights, each computed only when asked for.
    """
    load = next((stage for stage in graph.stages if stage.rate is Rate.LOAD), None)
    rest = tuple(stage for stage in graph.stages if stage is not load)
    produced = {} if load is None else {v.name: n for n in load.nodes for v in n.outputs}
    used = dict.fromkeys(
        name for stage in rest for name in stage_uses(stage) if is_weight(name) or name in produced
    )
    names = _names(tuple(used), produced)
    types = value_types(graph)
    weights = tuple(Value(name=names[name], type=types[name]) for name in used)
    sources = {names[name]: name for name in used}
    blocks = RowBlocks(
        produced=produced,
        types=types,
        whole=_Evaluation(graph, produced, read_weight, {}).value,
        small_bytes=SMALL_BYTES,
    )
    stages = tuple(_renamed(stage, names) for stage in rest)
    packed = PackedWeights(values=weights, blocks=lambda name: blocks.blocks(sources[name]))
    return replace(graph, weights=weights, stages=stages), packed


def _names(used: tuple[str, ...], produced: dict[str, Node]) -> dict[str, str]:
    """Old name -> name in the bundle: a checkpoint tensor keeps its own, a result is named by
    origin."""
    taken = {name for name in used if is_weight(name)}
    names = {name: name for name in taken}
    for name in used:
        if is_weight(name):
            continue
        base = "@" + (produced[name].origin or "constant").replace("+", "-") + ".packed"
        label, count = base, 0
        while label in taken:
            count += 1
            label = f"{base}.{count}"
        taken.add(label)
        names[name] = label
    return names


@dataclass(slots=True)
class _Evaluation:
    """Computes values of the load stage on demand; keeps small ones."""

    graph: Graph
    produced: dict[str, Node]
    read_weight: Callable[[str], Array]
    kept: dict[str, Array]

    def value(self, name: str) -> Array:
        if is_weight(name):
            return self.read_weight(name[1:])
        if name in self.kept:
            return self.kept[name]
        values: dict[str, Array] = {}
        nodes = tuple(self._needed(name, {}))
        stage = Stage(name="load", rate=Rate.LOAD, nodes=nodes)
        values.update(self.kept)
        Interpreter(self.graph, lambda weight: self.read_weight(weight[1:])).run_stage(
            stage, values
        )
        for node in nodes:
            for value in node.outputs:
                if value.type.size_bytes <= SMALL_BYTES:
                    self.kept[value.name] = values[value.name]
        return values[name]

    def _needed(self, name: str, seen: dict[str, bool]) -> Iterator[Node]:
        """The nodes that `name` is made of and that are not kept, in order of execution."""
        if is_weight(name) or name in self.kept or name in seen:
            return
        seen[name] = True
        node = self.produced[name]
        for operand in node.inputs:
            yield from self._needed(operand, seen)
        yield node


def _renamed(stage: Stage, names: dict[str, str]) -> Stage:
    nodes = tuple(
        replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))
        for node in stage.nodes
    )
    loop: Loop | None = stage.loop
    assert loop is None, f"stage {stage.name} still has a loop"
    return replace(stage, nodes=nodes)
