"""Group what remains pointwise: one generated kernel a group."""

from __future__ import annotations

from dataclasses import dataclass, field

from policyc.compiler.ir.attributes import Instruction, PointwiseAttributes, ScalarAttributes
from policyc.compiler.ir.graph import Graph, Node, Rate, Stage, Value
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.types import DType
from policyc.passes.rewrite import Rewrite

MAX_INSTRUCTIONS = 32


def fuse_pointwise(graph: Graph) -> Graph:
    """Turn each maximal run of pointwise ops of one shape into a `pointwise` node.

    Before:    %a = mul(x, y);  %b = add(%a, z)
    After:     %b = pointwise(x, y, z) {program=[mul(0, 1), add(3, 2)], results=[4]}
    Requires:  the other fusions have run: a group takes what they left.
    Ensures:   outside the load and report stages no pointwise op stands alone.
    Numerics:  exact: intermediates are float32.
    """
    rewrite = Rewrite(graph)
    for stage in graph.stages:
        if stage.rate not in (Rate.LOAD, Rate.REPORT):
            for group in _groups(stage):
                _emit(rewrite, group)
    return rewrite.finish()


@dataclass(slots=True)
class _Group:
    """Consecutive pointwise nodes of one result shape."""

    nodes: list[Node] = field(default_factory=list)


def _groups(stage: Stage) -> list[_Group]:
    """Runs of neighbouring pointwise nodes with the same result shape."""
    groups: list[_Group] = []
    open_group: _Group | None = None
    for node in stage.nodes:
        if not row_of(node.op).pointwise or node.output.type.dtype is DType.F64:
            open_group = None
            continue
        full = open_group is not None and len(open_group.nodes) >= MAX_INSTRUCTIONS
        fits = open_group is not None and _shape(open_group.nodes[0]) == _shape(node)
        if open_group is None or full or not fits:
            open_group = _Group()
            groups.append(open_group)
        open_group.nodes.append(node)
    return groups


def _shape(node: Node) -> tuple[int, ...]:
    return node.output.type.shape


def _emit(rewrite: Rewrite, group: _Group) -> None:
    inside = {node.output.name for node in group.nodes}
    operands = tuple(
        dict.fromkeys(name for node in group.nodes for name in node.inputs if name not in inside)
    )
    index = {name: position for position, name in enumerate(operands)}
    program: list[Instruction] = []
    for node in group.nodes:
        value = node.attrs.value if isinstance(node.attrs, ScalarAttributes) else None
        arguments = tuple(index[name] for name in node.inputs)
        index[node.output.name] = len(operands) + len(program)
        program.append(Instruction(op=node.op, arguments=arguments, value=value))
    results = [node.output for node in group.nodes if _is_read_beyond(rewrite, node, inside)]
    attributes = PointwiseAttributes(
        program=tuple(program),
        results=tuple(index[value.name] for value in results),
        dtypes=tuple(value.type.dtype for value in results),
    )
    last = group.nodes[-1]
    new = Node(
        op="pointwise",
        inputs=operands,
        outputs=tuple(Value(name=value.name, type=value.type) for value in results),
        attrs=attributes,
        origin=last.origin,
    )
    rewrite.replace(last, new)
    for node in group.nodes[:-1]:
        rewrite.replace(node)


def _is_read_beyond(rewrite: Rewrite, node: Node, inside: set[str]) -> bool:
    name = node.output.name
    if rewrite.is_read_outside(name):
        return True
    return any(reader.outputs[0].name not in inside for reader in rewrite.readers(name))
