"""Random well-formed graphs, for property tests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from policyc.compiler.ir.attributes import (
    AddNormAttributes,
    AxisAttributes,
    CastAttributes,
    Instruction,
    LinearAttributes,
    NoAttributes,
    NormAttributes,
    PermuteAttributes,
    PointwiseAttributes,
    ScalarAttributes,
    SliceAttributes,
)
from policyc.compiler.ir.graph import Carry, Collect, Graph, Input, Loop, Node, Rate, Stage, Value
from policyc.compiler.ir.ops import infer
from policyc.compiler.ir.types import DType, TensorType

ROWS, WIDTH = 2, 4
X = TensorType(DType.F32, (ROWS, WIDTH))
WEIGHTS = (
    Value(name="@layer.0/w-q", type=TensorType(DType.F32, (WIDTH, WIDTH))),
    Value(name="@bias", type=TensorType(DType.F32, (WIDTH,))),
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6)


def _operation(draw: st.DrawFn, pick: st.SearchStrategy[str]) -> tuple[str, list[str], object]:
    """An op over operands of type X, with its attributes."""
    one, other = draw(pick), draw(pick)
    op = draw(st.sampled_from(sorted(_FORMS)))
    operands, attributes = _FORMS[op](draw, one, other)
    return op, operands, attributes


_FORMS = {
    "silu": lambda draw, a, b: ([a], NoAttributes()),
    "add": lambda draw, a, b: ([a, b], NoAttributes()),
    "mul_scalar": lambda draw, a, b: ([a], ScalarAttributes(value=draw(NUMBERS))),
    "linear": lambda draw, a, b: (
        [a, WEIGHTS[0].name, WEIGHTS[1].name],
        LinearAttributes(bias=True, activation=draw(st.sampled_from(("none", "silu")))),
    ),
    "rms_norm": lambda draw, a, b: ([a], NormAttributes(eps=draw(st.floats(0, 1)))),
    "add_norm": lambda draw, a, b: ([a, b], AddNormAttributes(kind="layer", eps=1e-6)),
    "concat": lambda draw, a, b: ([a, b], AxisAttributes(axis=draw(st.integers(0, 1)))),
    "slice": lambda draw, a, b: (
        [a],
        SliceAttributes(axis=1, start=draw(st.integers(0, 3)), stop=WIDTH),
    ),
    "permute": lambda draw, a, b: ([a], PermuteAttributes(order=(1, 0))),
    "cast": lambda draw, a, b: ([a], CastAttributes(dtype=draw(st.sampled_from(DType)))),
    "pointwise": lambda draw, a, b: (
        [a, b],
        PointwiseAttributes(
            program=(
                Instruction(op="mul", arguments=(0, 1)),
                Instruction(op="add_scalar", arguments=(2,), value=draw(NUMBERS)),
            ),
            results=(3, 2),
            dtypes=(DType.F32, DType.BF16),
        ),
    ),
}  # fmt: skip


@st.composite
def nodes(draw: st.DrawFn, prefix: str, known: list[str]) -> tuple[Node, ...]:
    """Up to six nodes; appends to `known` the results of type X."""
    made: list[Node] = []
    types = {**{weight.name: weight.type for weight in WEIGHTS}}
    for number in range(draw(st.integers(1, 6))):
        op, operands, attributes = _operation(draw, st.sampled_from(list(known)))
        origin = draw(st.sampled_from(("", "a.b", "model.layers.0+1 (merged)")))
        node = Node(op=op, inputs=tuple(operands), outputs=(), attrs=attributes, origin=origin)
        kinds = infer(node, tuple(types.get(name, X) for name in operands))
        names = [f"{prefix}{number}.{part}" for part in range(len(kinds))]
        pairs = zip(names, kinds, strict=True)
        node = replace(node, outputs=tuple(Value(name=name, type=kind) for name, kind in pairs))
        known.extend(value.name for value in node.outputs if value.type == X)
        made.append(node)
    return tuple(made)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A stage before a loop, the loop, and a report stage."""
    known = ["x", "noise"]
    first = Stage(name="first", rate=Rate.OBSERVATION, nodes=draw(nodes("%", known)))
    outside = list(known)
    known.append("inner")
    body = draw(nodes("step_", known))
    each = draw(st.sampled_from(known))
    count = draw(st.integers(1, 3))
    carry = Carry(
        initial=draw(st.sampled_from(outside)),
        inner=Value(name="inner", type=X),
        next=draw(st.sampled_from(known)),
        final=Value(name="actions", type=X),
    )
    stacked = Value(name="stack.0", type=X.with_shape((count, *X.shape)))
    index = Value(name="%i", type=TensorType(DType.I32, ()))
    collects = (Collect(each=each, stacked=stacked),)
    loop = Loop(count=count, index=index, carries=(carry,), collects=collects)
    outside.append("actions")
    report = draw(nodes("r/", outside))
    return Graph(
        inputs=tuple(
            Input(value=Value(name=name, type=X), rate=Rate.OBSERVATION) for name in ("x", "noise")
        ),
        weights=WEIGHTS,
        stages=(
            first,
            Stage(name="loop", rate=Rate.STEP, nodes=body, loop=loop),
            Stage(name="report", rate=Rate.REPORT, nodes=report),
        ),
        outputs=("actions",),
        named=("stack.0", report[-1].outputs[0].name),
    )
