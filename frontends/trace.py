"""Traces the stages of a model with `torch.export` into a graph.

Stages are exported on the meta device, so that tracing a full-size model needs no memory for
weights. Each exported call becomes one node through a row of `importers.IMPORTERS`; a call
without a row stops with the source line of the adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import Node as FxNode

import policyc.frontends.custom_ops  # noqa: F401  (registers torch.ops.policyc)
from policyc.compiler.ir.graph import (
    Carry,
    Collect,
    Graph,
    Input,
    Loop,
    Node,
    Stage,
    Value,
    is_weight,
)
from policyc.compiler.ir.types import DType, TensorType
from policyc.frontends.adapter import ModelSpec, StageSpec
from policyc.frontends.errors import FrontendError
from policyc.frontends.importers import IMPORTERS, Call
from policyc.frontends.source_lines import source_line

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
}
CHECKS = frozenset({"aten._assert_tensor_metadata.default"})
"""Calls that the exporter adds to check its own assumptions; they yield nothing."""
_ELEMENT_TYPES = {value: key for key, value in TORCH_DTYPES.items()}


def trace(model: ModelSpec) -> Graph:
    """The model's stages as a graph of level `traced`.

    Raises:
        FrontendError: a call that has no row, or a result that is not what the model declares.
    """
    types = {item.name: item.type for item in model.inputs}
    weight_types = {
        **model.weights,
        **{name: TensorType(DType.of(a.dtype), a.shape) for name, a in model.constants.items()},
    }
    counter = _Counter()
    stages = []
    for spec in model.stages:
        stage = _trace_stage(spec, types, weight_types, counter)
        stages.append(stage)
    used = {name for stage in stages for node in stage.nodes for name in node.inputs}
    weights = tuple(
        Value(name=f"@{name}", type=kind)
        for name, kind in sorted(weight_types.items())
        if f"@{name}" in used
    )
    inputs = tuple(
        Input(value=Value(name=item.name, type=item.type), rate=item.rate) for item in model.inputs
    )
    return Graph(
        inputs=inputs,
        weights=weights,
        stages=tuple(stages),
        outputs=model.outputs,
        named=model.named,
    )


@dataclass(slots=True)
class _Counter:
    """Hands out names for unnamed values."""

    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"%{self.count - 1}"


class _StageModule(torch.nn.Module):
    """A stage function in the form that torch.export takes."""

    def __init__(self, spec: StageSpec) -> None:
        super().__init__()
        self._function = spec.function

    def forward(self, weights: dict[str, Tensor], tensors: list[Tensor]) -> dict[str, Tensor]:
        return self._function(weights, *tensors)


class _Recorder(dict[str, Tensor]):
    """Weights on the meta device that remember which of them were read."""

    def __init__(self, types: Mapping[str, TensorType]) -> None:
        super().__init__()
        self._types = types

    def __missing__(self, name: str) -> Tensor:
        self[name] = _meta(self._types[name])
        return self[name]


def _weights_read(
    spec: StageSpec, types: Mapping[str, TensorType], tensors: list[Tensor]
) -> dict[str, Tensor]:
    """The weights that the stage reads, found by running it once on the meta device.

    Exporting costs time for every weight that is handed in, read or not.
    """
    recorder = _Recorder(types)
    spec.function(recorder, *tensors)
    return dict(sorted(recorder.items()))


def _meta(kind: TensorType) -> Tensor:
    return torch.empty(kind.shape, dtype=TORCH_DTYPES[kind.dtype], device="meta")


def _trace_stage(
    spec: StageSpec,
    types: dict[str, TensorType],
    weight_types: Mapping[str, TensorType],
    counter: _Counter,
) -> Stage:
    names = list(spec.inputs)
    if spec.loop is not None:
        index = counter.name()
        types[index] = TensorType(DType.I32, ())
        for carry in spec.loop.carries:
            types[carry.inner] = types[carry.initial]
        names = [index, *(carry.inner for carry in spec.loop.carries), *names]
    tensors = [_meta(types[name]) for name in names]
    weights = _weights_read(spec, weight_types, tensors)
    program = torch.export.export(_StageModule(spec), (weights, tensors), strict=False)
    operands = [f"@{name}" for name in weights] + names
    importer = _StageImporter(spec, counter, types, lambda: spec.function(weights, *tensors))
    nodes = importer.run(program, operands)
    loop = None if spec.loop is None else _loop(spec, names[0], types)
    return Stage(name=spec.name, rate=spec.rate, nodes=nodes, loop=loop)


def _loop(spec: StageSpec, index: str, types: dict[str, TensorType]) -> Loop:
    assert spec.loop is not None
    carries = []
    for item in spec.loop.carries:
        kind = types[item.inner]
        types[item.final] = kind
        carries.append(
            Carry(
                initial=item.initial,
                inner=Value(name=item.inner, type=kind),
                next=item.next,
                final=Value(name=item.final, type=kind),
            )
        )
    collects = []
    for each, stacked in spec.loop.collects:
        kind = types[each].with_shape((spec.loop.count, *types[each].shape))
        types[stacked] = kind
        collects.append(Collect(each=each, stacked=Value(name=stacked, type=kind)))
    return Loop(
        count=spec.loop.count,
        index=Value(name=index, type=TensorType(DType.I32, ())),
        carries=tuple(carries),
        collects=tuple(collects),
    )


@dataclass(slots=True)
class _StageImporter:
    """Turns the nodes of one exported program into nodes of a stage."""

    spec: StageSpec
    counter: _Counter
    types: dict[str, TensorType]
    replay: Callable[[], object]
    names: dict[FxNode, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def run(self, program: torch.export.ExportedProgram, operands: list[str]) -> tuple[Node, ...]:
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        for node, name in zip(placeholders, operands, strict=True):
            self.names[node] = name
        for node in program.graph.nodes:
            if node.op == "call_function" and str(node.target) not in CHECKS:
                self._import(node)
            elif node.op == "output":
                self._name_results(program, node)
            elif node.op not in ("placeholder", "call_function"):
                raise FrontendError(f"stage {self.spec.name}: {node.op} {node.target} in the trace")
        return tuple(self.nodes)

    def _import(self, node: FxNode) -> None:
        key = str(node.target)
        try:
            if key not in IMPORTERS:
                known = ", ".join(sorted(IMPORTERS))
                raise FrontendError(f"{key} has no row in the op table. Write it with: {known}.")
            result = _type_of(node)
            call = IMPORTERS[key](node.args, dict(node.kwargs), result)
        except FrontendError as error:
            line = source_line(node, self.spec.function, self.replay)
            raise FrontendError(f"stage {self.spec.name}, {line}: {error}") from None
        if isinstance(call, FxNode):
            self.names[node] = self.names[call]
            return
        self.names[node] = self._emit(call, result)

    def _emit(self, call: Call, result: TensorType) -> str:
        inputs = tuple(self.names[operand] for operand in call.operands)
        origin = self._origin(inputs)
        value = Value(name=self.counter.name(), type=result)
        self.origins[value.name] = origin
        self.nodes.append(
            Node(op=call.op, inputs=inputs, outputs=(value,), attrs=call.attributes, origin=origin)
        )
        return value.name

    def _origin(self, inputs: tuple[str, ...]) -> str:
        for name in inputs:
            if is_weight(name):
                return name[1:].rpartition(".")[0]
        return next((self.origins[name] for name in inputs if name in self.origins), "")

    def _name_results(self, program: torch.export.ExportedProgram, node: FxNode) -> None:
        results = torch.utils._pytree.tree_unflatten(
            list(node.args[0]),  # type: ignore[arg-type]
            program.call_spec.out_spec,
        )
        renamed: dict[str, str] = {}
        for name, result in results.items():
            current = self.names[result]
            made_here = any(value.name == current for n in self.nodes for value in n.outputs)
            if not made_here or current in renamed:
                raise FrontendError(
                    f"stage {self.spec.name}: result {name} is an input or another result, not a "
                    "value that the stage computes; return each value once"
                )
            renamed[current] = name
            self.types[name] = _type_of(result)
        self.nodes = [_renamed(item, renamed) for item in self.nodes]


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    return Node(
        op=node.op,
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(Value(name=names.get(v.name, v.name), type=v.type) for v in node.outputs),
        attrs=node.attrs,
        origin=node.origin,
    )


def _type_of(node: FxNode) -> TensorType:
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        raise FrontendError(f"{node.target} yields {type(value).__name__}, expected one tensor")
    element = _ELEMENT_TYPES.get(value.dtype)
    if element is None:
        known = ", ".join(member.value for member in _ELEMENT_TYPES.values())
        raise FrontendError(f"{node.target} yields {value.dtype}, expected one of {known}")
    return TensorType(element, tuple(int(size) for size in value.shape))
