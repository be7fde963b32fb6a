"""Small scheduled graphs, made by hand, for the tests of selection, planning and lowering."""

from __future__ import annotations

from policyc.compiler.ir.attributes import (
    AddNormAttributes,
    LinearAttributes,
    NormAttributes,
    PermuteAttributes,
    RowAttributes,
    ShapeAttributes,
    SliceAttributes,
)
from policyc.compiler.ir.graph import Graph, Input, Node, Rate, Stage, Value
from policyc.compiler.ir.types import DType, TensorType

BF16, F32 = DType.BF16, DType.F32


def value(name: str, dtype: DType, *shape: int) -> Value:
    return Value(name=name, type=TensorType(dtype, shape))


def linear(x: str, weight: str, result: Value, **attributes: object) -> Node:
    attrs = LinearAttributes(dtype=result.type.dtype, **attributes)  # type: ignore[arg-type]
    bias = (f"{weight}.bias",) if attrs.bias else ()
    return Node(op="linear", inputs=(x, weight, *bias), outputs=(result,), attrs=attrs)


def rms_norm(x: str, result: Value, origin: str = "") -> Node:
    attrs = NormAttributes(eps=1e-6, dtype=result.type.dtype)
    return Node(op="rms_norm", inputs=(x,), outputs=(result,), attrs=attrs, origin=origin)


def add_norm(branch: str, residual: str, total: Value, normed: Value) -> Node:
    attrs = AddNormAttributes(kind="rms", eps=1e-6, sum_dtype=total.type.dtype, dtype=BF16)
    return Node(op="add_norm", inputs=(branch, residual), outputs=(total, normed), attrs=attrs)


def sliced(x: str, result: Value, axis: int, start: int, stop: int) -> Node:
    attrs = SliceAttributes(axis=axis, start=start, stop=stop)
    return Node(op="slice", inputs=(x,), outputs=(result,), attrs=attrs)


def reshaped(x: str, result: Value) -> Node:
    attrs = ShapeAttributes(shape=result.type.shape)
    return Node(op="reshape", inputs=(x,), outputs=(result,), attrs=attrs)


def expanded(x: str, result: Value) -> Node:
    attrs = ShapeAttributes(shape=result.type.shape)
    return Node(op="expand", inputs=(x,), outputs=(result,), attrs=attrs)


def permuted(x: str, result: Value, *order: int) -> Node:
    attrs = PermuteAttributes(order=order)
    return Node(op="permute", inputs=(x,), outputs=(result,), attrs=attrs)


def row(table: str, result: Value, index: int) -> Node:
    return Node(op="row", inputs=(table,), outputs=(result,), attrs=RowAttributes(index=index))


def stage(name: str, rate: Rate, *nodes: Node) -> Stage:
    return Stage(name=name, rate=rate, nodes=nodes)


def graph(
    inputs: tuple[tuple[Value, Rate], ...],
    weights: tuple[Value, ...],
    stages: tuple[Stage, ...],
    outputs: tuple[str, ...],
    named: tuple[str, ...] = (),
) -> Graph:
    return Graph(
        inputs=tuple(Input(value=item, rate=rate) for item, rate in inputs),
        weights=weights,
        stages=stages,
        outputs=outputs,
        named=named,
    )


def toy_graph() -> Graph:
    """Two stages: a projection whose result the step stage reads through a view, and an add_norm.

    Report: a norm of the sum, on the host.
    """
    observe = stage(
        "observe",
        Rate.OBSERVATION,
        linear("x", "@in", value("qkv", BF16, 16, 96)),
        rms_norm("x", value("%0", BF16, 16, 64)),
        linear("%0", "@in", value("%1", BF16, 16, 96)),
        sliced("qkv", value("v", BF16, 16, 64), 1, 32, 96),
    )
    step = stage(
        "step",
        Rate.STEP,
        add_norm("v", "noise", value("sum", F32, 16, 64), value("%3", BF16, 16, 64)),
        linear("%3", "@out", value("%4", F32, 16, 32)),
        linear("%3", "@out", value("actions", F32, 16, 32)),
    )
    report = stage("report", Rate.REPORT, rms_norm("sum", value("shown", F32, 16, 64)))
    return graph(
        inputs=(
            (value("x", BF16, 16, 64), Rate.OBSERVATION),
            (value("noise", F32, 16, 64), Rate.STEP),
        ),
        weights=(value("@in", BF16, 96, 64), value("@out", BF16, 32, 64)),
        stages=(observe, step, report),
        outputs=("actions",),
        named=("shown",),
    )
