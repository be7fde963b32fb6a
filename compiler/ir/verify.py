"""The verifier: structure, single assignment, rates, and every node's type inferred again.

It runs after every pass. Each rule is one function over the graph; an error shows the stage with
the message under the node.
"""

from __future__ import annotations

from policyc.compiler.ir.errors import TypeMismatch, VerifyError
from policyc.compiler.ir.graph import (
    Graph,
    Loop,
    Node,
    Rate,
    Stage,
    is_weight,
    stage_definitions,
    stage_uses,
)
from policyc.compiler.ir.ops import infer
from policyc.compiler.ir.text import print_node
from policyc.compiler.ir.types import DType, TensorType

CONTEXT_NODES = 3


def verify(graph: Graph, after: str = "") -> None:
    """Check every rule; `after` names the pass that made the graph, for the message.

    Raises:
        VerifyError: with the pass, the stage, the node and its origin, expected and got.
    """
    try:
        _check_inputs(graph)
        _check_stage_order(graph)
        types, rates = _known_at_entry(graph)
        for stage in graph.stages:
            _check_stage(stage, types, rates)
        _check_outputs(graph, types)
    except VerifyError as error:
        raise VerifyError(f"after {after}, {error}" if after else str(error)) from None


def _check_inputs(graph: Graph) -> None:
    names = [item.value.name for item in graph.inputs] + [item.name for item in graph.weights]
    for stage in graph.stages:
        names += [value.name for value in stage_definitions(stage)]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise VerifyError(f"value {name} is defined twice")
        seen.add(name)
    for weight in graph.weights:
        if not is_weight(weight.name):
            raise VerifyError(f"weight {weight.name}: expected a name that starts with @")


def _check_stage_order(graph: Graph) -> None:
    names = [stage.name for stage in graph.stages]
    if len(set(names)) != len(names):
        raise VerifyError(f"stage names repeat: {names}")
    for before, stage in zip(graph.stages, graph.stages[1:], strict=False):
        if stage.rate < before.rate:
            raise VerifyError(
                f"stage {stage.name} of rate {stage.rate.text} stands after {before.name} of rate "
                f"{before.rate.text}; expected slower rates first"
            )


def _known_at_entry(graph: Graph) -> tuple[dict[str, TensorType], dict[str, Rate]]:
    types = {item.value.name: item.value.type for item in graph.inputs}
    rates = {item.value.name: item.rate for item in graph.inputs}
    for weight in graph.weights:
        types[weight.name] = weight.type
        rates[weight.name] = Rate.LOAD
    return types, rates


def _check_stage(stage: Stage, types: dict[str, TensorType], rates: dict[str, Rate]) -> None:
    uses = set(stage_uses(stage))
    for name in uses & rates.keys():
        if rates[name] > stage.rate:
            raise VerifyError(
                f"stage {stage.name} of rate {stage.rate.text} reads {name} of the faster rate "
                f"{rates[name].text}"
            )
    loop = stage.loop
    if loop is not None:
        _check_loop_entry(stage, loop, types)
    for index, node in enumerate(stage.nodes):
        _check_node(stage, index, node, types)
        types.update((value.name, value.type) for value in node.outputs)
    if loop is not None:
        _check_loop_exit(stage, loop, types)
    rates.update((value.name, stage.rate) for value in stage_definitions(stage))


def _check_node(stage: Stage, index: int, node: Node, types: dict[str, TensorType]) -> None:
    missing = [name for name in node.inputs if name not in types]
    if missing:
        raise _at(stage, index, f"reads {missing[0]}, which nothing before defines")
    try:
        inferred = infer(node, tuple(types[name] for name in node.inputs))
    except TypeMismatch as error:
        raise _at(stage, index, str(error)) from None
    stated = tuple(value.type for value in node.outputs)
    if stated != inferred:
        got, expected = ", ".join(map(str, stated)), ", ".join(map(str, inferred))
        raise _at(stage, index, f"states {got}, expected {expected} from its operands")


def _check_loop_entry(stage: Stage, loop: Loop, types: dict[str, TensorType]) -> None:
    if loop.count < 1:
        raise VerifyError(f"stage {stage.name}: loop count is {loop.count}, expected 1 or more")
    if loop.index.type != TensorType(DType.I32, ()):
        raise VerifyError(f"stage {stage.name}: loop index is {loop.index}, expected i32[]")
    types[loop.index.name] = loop.index.type
    for carry in loop.carries:
        _check_same(stage, carry.initial, carry.inner.type, types)
        types[carry.inner.name] = carry.inner.type


def _check_loop_exit(stage: Stage, loop: Loop, types: dict[str, TensorType]) -> None:
    for carry in loop.carries:
        _check_same(stage, carry.next, carry.inner.type, types)
        _check_same(stage, carry.inner.name, carry.final.type, types)
        types[carry.final.name] = carry.final.type
    for item in loop.collects:
        each = _require(stage, item.each, types)
        stacked = each.with_shape((loop.count, *each.shape))
        if item.stacked.type != stacked:
            raise VerifyError(f"stage {stage.name}: collects {item.stacked}, expected {stacked}")
        types[item.stacked.name] = item.stacked.type


def _require(stage: Stage, name: str, types: dict[str, TensorType]) -> TensorType:
    if name not in types:
        raise VerifyError(f"stage {stage.name}: its loop reads {name}, which nothing defines")
    return types[name]


def _check_same(
    stage: Stage, name: str, expected: TensorType, types: dict[str, TensorType]
) -> None:
    got = _require(stage, name, types)
    if got != expected:
        raise VerifyError(f"stage {stage.name}: loop value {name} is {got}, expected {expected}")


def _check_outputs(graph: Graph, types: dict[str, TensorType]) -> None:
    for name in (*graph.outputs, *graph.named):
        if name not in types:
            raise VerifyError(f"output {name} is not a value of the graph")
    if not graph.outputs:
        raise VerifyError("the graph has no output")


def _at(stage: Stage, index: int, message: str) -> VerifyError:
    node = stage.nodes[index]
    first = max(0, index - CONTEXT_NODES)
    lines = [f"  {print_node(item)}" for item in stage.nodes[first : index + 1]]
    result = ", ".join(value.name for value in node.outputs)
    origin = f" Origin {node.origin}." if node.origin else ""
    head = f"stage {stage.name}, {result} {node.op}: {message}.{origin}"
    return VerifyError("\n".join([head, *lines, f"  ^ {message}"]))


def check_ops(graph: Graph, allowed: frozenset[str], level: str) -> None:
    """Every op outside the load and report stages is allowed at this level; raises VerifyError."""
    for stage in graph.stages:
        if stage.rate in (Rate.LOAD, Rate.REPORT):
            continue
        for index, node in enumerate(stage.nodes):
            if node.op not in allowed:
                known = ", ".join(sorted(allowed))
                raise _at(stage, index, f"op {node.op} does not belong to level {level}: {known}")
