"""Nodes of the linear family of any size, with views and without data."""

from __future__ import annotations

from dataclasses import dataclass

from policyc.compiler.ir.attributes import (
    GatedLinearAttributes,
    LinearAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.graph import Node, Value
from policyc.compiler.ir.ops import infer
from policyc.compiler.ir.types import DType, TensorType
from policyc.kernels.spec import Device, Family, KernelCall, Parameters, View
from tests.kernels.cases import contiguous_view


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product [m, k] x [n, k]; `n` counts the columns of the result."""

    m: int
    n: int
    k: int
    op: str = "linear"
    dtype: DType = DType.BF16
    activation: str = "none"
    bias: bool = False
    splits: int = 0

    @property
    def types(self) -> tuple[TensorType, ...]:
        rows = self.n * (2 if self.op == "gated_linear" else 1)
        x = TensorType(self.dtype, (self.m, self.k))
        w = TensorType(self.dtype, (rows, self.k))
        bias = (TensorType(DType.F32, (rows,)),) if self.bias else ()
        return (x, w, *bias)

    @property
    def node(self) -> Node:
        attrs: object = LinearAttributes(
            activation=self.activation, bias=self.bias, dtype=self.dtype
        )
        if self.op == "gated_linear":
            attrs = GatedLinearAttributes(activation=self.activation, dtype=self.dtype)
        if self.op == "split_linear":
            attrs = SplitLinearAttributes(splits=self.splits)
        node = Node(
            op=self.op, inputs=("x", "@w", "@bias")[: len(self.types)], outputs=(), attrs=attrs
        )
        (result,) = infer(node, self.types)
        output = Value(name="out", type=result)
        return Node(op=self.op, inputs=node.inputs, outputs=(output,), attrs=attrs)

    @property
    def views(self) -> tuple[View, ...]:
        names = self.node.inputs
        return tuple(contiguous_view(n, t) for n, t in zip(names, self.types, strict=True))

    def call(self, family: Family, parameters: Parameters, device: Device) -> KernelCall:
        node = self.node
        results = (contiguous_view("out", node.output.type),)
        (call,) = family.calls(node, self.views, results, None, parameters, device)
        return call
