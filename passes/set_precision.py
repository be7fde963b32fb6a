"""Choose the element type of every value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from policyc.compiler.ir.attributes import (
    AddNormAttributes,
    CastAttributes,
    GatedLinearAttributes,
    LinearAttributes,
    PointwiseAttributes,
)
from policyc.compiler.ir.graph import Graph, Node, Rate, Stage, Value
from policyc.compiler.ir.ops import infer, row_of
from policyc.compiler.ir.types import DType, TensorType
from policyc.passes.rewrite import Rewrite, with_load_nodes

MATRIX_OPS = frozenset({"linear", "gated_linear", "split_linear"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPrecision:
    """Options: `dtype` of matrix products; `keep` are globs of origins that stay in float32."""

    dtype: DType = DType.BF16
    keep: tuple[str, ...] = ()


def set_precision(graph: Graph, options: SetPrecision = SetPrecision()) -> Graph:
    """Give matrix products, and what lies between them, the options' element type.

    Before:    %h: f32 = rms_norm(x);  %y: f32 = linear(%h, @w)
    After:     stage load { %w = cast(@w) {dtype=bf16} }
               %h: bf16 = rms_norm(x) {dtype=bf16};  %y: bf16 = linear(%h, %w) {dtype=bf16}
    Requires:  level fused: every op that yields a new type has a dtype attribute.
    Ensures:   a matrix product's operands have one type; graph inputs, outputs and loop values
               keep theirs, named values may be rounded; vectors (biases, scales, tables) stay
               float32.
    Numerics:  rounds weights and activations to the element type; sums and norms stay float32.
    """
    if options.dtype is DType.F32:
        return graph
    rewrite = _Precision(graph, options)
    stages = tuple(rewrite.stage(stage) for stage in graph.stages)
    if not rewrite.changed:
        return graph
    return graph.with_stages(with_load_nodes(stages, rewrite.load_nodes))


class _Precision:
    """Walks the graph in order, giving each node's results their types."""

    def __init__(self, graph: Graph, options: SetPrecision) -> None:
        self._rewrite = Rewrite(graph)
        self._options = options
        self._types = dict(self._rewrite.types)
        self._cast: dict[str, str] = {}
        self._outputs = _with_sources(graph.outputs, self._rewrite)
        self.load_nodes: list[Node] = []
        self.changed = False

    def stage(self, stage: Stage) -> Stage:
        if stage.rate in (Rate.LOAD, Rate.REPORT):
            nodes = tuple(self._retyped(node) for node in stage.nodes)
            return _with_loop_types(replace(stage, nodes=nodes), self._types)
        fixed = {carry.next for carry in stage.loop.carries} if stage.loop else set()
        fixed |= self._outputs
        nodes = tuple(new for node in stage.nodes for new in self._node(node, fixed))
        return _with_loop_types(replace(stage, nodes=nodes), self._types)

    def _node(self, node: Node, fixed: set[str]) -> tuple[Node, ...]:
        if node.op in MATRIX_OPS:
            return self._matrix(node)
        if node.op == "pointwise":
            return (self._pointwise(node, fixed),)
        if node.op == "embedding":
            ids, table = node.inputs
            node = replace(
                node, inputs=(ids, self._weight(table, self._options.dtype, node.origin))
            )
        return (self._retyped(self._with_dtype(node)),)

    def _with_dtype(self, node: Node) -> Node:
        """The node yielding the options' type, where its row lets it choose and a product reads
        it."""
        if not hasattr(node.attrs, "dtype") or node.op == "cast":
            return node
        dtype = self._wanted(node)
        attributes = replace(node.attrs, dtype=dtype)  # type: ignore[type-var]
        if isinstance(attributes, AddNormAttributes):
            total = node.outputs[0].name
            kept = DType.F32 if total in self._outputs else self._options.dtype
            attributes = replace(attributes, sum_dtype=kept)
        return replace(node, attrs=attributes)

    def _wanted(self, node: Node) -> DType:
        """float32 if the last result is an output, or if only matrix products that stay in float32
        read it."""
        name = node.outputs[-1].name
        if name in self._outputs:
            return DType.F32
        readers = self._rewrite.readers(name)
        if readers and all(r.op in MATRIX_OPS and self._stays(r) for r in readers):
            return DType.F32
        return self._options.dtype

    def _stays(self, node: Node) -> bool:
        return any(fnmatchcase(node.origin, pattern) for pattern in self._options.keep)

    def _matrix(self, node: Node) -> tuple[Node, ...]:
        dtype = DType.F32 if self._stays(node) else self._options.dtype
        x, weight, *bias = node.inputs
        before: tuple[Node, ...] = ()
        if self._types[x].dtype is not dtype:
            name = f"{node.output.name}.x"
            value = Value(name=name, type=self._types[x].with_dtype(dtype))
            attributes = CastAttributes(dtype=dtype)
            before = (
                Node(
                    op="cast", inputs=(x,), outputs=(value,), attrs=attributes, origin=node.origin
                ),
            )
            self._types[name] = value.type
            x = name
            self.changed = True
        inputs = (x, self._weight(weight, dtype, node.origin), *bias)
        attrs = node.attrs
        if isinstance(attrs, LinearAttributes | GatedLinearAttributes):
            kept = DType.F32 if node.output.name in self._outputs else dtype
            attrs = replace(attrs, dtype=kept)
        return (*before, self._retyped(replace(node, inputs=inputs, attrs=attrs)))

    def _weight(self, name: str, dtype: DType, origin: str) -> str:
        if self._types[name].dtype is dtype:
            return name
        key = f"{name}.{dtype.value}"
        if key not in self._cast:
            kind = self._types[name].with_dtype(dtype)
            label = f"%{len(self._cast)}.cast"
            self._cast[key] = label
            self._types[label] = kind
            self.load_nodes.append(
                Node(
                    op="cast",
                    inputs=(name,),
                    outputs=(Value(name=label, type=kind),),
                    attrs=CastAttributes(dtype=dtype),
                    origin=origin,
                )
            )
            self.changed = True
        return self._cast[key]

    def _pointwise(self, node: Node, fixed: set[str]) -> Node:
        """Results that the loop carries on keep float32; others take the options' type."""
        assert isinstance(node.attrs, PointwiseAttributes)
        dtypes = tuple(
            dtype if value.name in fixed or dtype is not DType.F32 else self._group_dtype(node)
            for value, dtype in zip(node.outputs, node.attrs.dtypes, strict=True)
        )
        return self._retyped(replace(node, attrs=replace(node.attrs, dtypes=dtypes)))

    def _group_dtype(self, node: Node) -> DType:
        wide = any(self._types[name].dtype is DType.F32 for name in node.inputs)
        return DType.F32 if wide else self._options.dtype

    def _retyped(self, node: Node) -> Node:
        kinds = infer(node, tuple(self._types[name] for name in node.inputs))
        outputs = tuple(
            replace(value, type=kind) for value, kind in zip(node.outputs, kinds, strict=True)
        )
        self._types.update((value.name, value.type) for value in outputs)
        if outputs == node.outputs:
            return node
        self.changed = True
        return replace(node, outputs=outputs)


def _with_sources(names: tuple[str, ...], rewrite: Rewrite) -> set[str]:
    """The values, and those that they are views of."""
    found = set(names)
    for name in names:
        producer = rewrite.producer(name)
        while producer is not None and row_of(producer.op).view:
            name = producer.inputs[0]
            found.add(name)
            producer = rewrite.producer(name)
    return found


def _with_loop_types(stage: Stage, types: dict[str, TensorType]) -> Stage:
    """Collected values follow the type of what is collected."""
    loop = stage.loop
    if loop is None:
        return stage
    collects = []
    for item in loop.collects:
        kind = item.stacked.type.with_dtype(types[item.each].dtype)
        types[item.stacked.name] = kind
        collects.append(replace(item, stacked=replace(item.stacked, type=kind)))
    return replace(stage, loop=replace(loop, collects=tuple(collects)))
