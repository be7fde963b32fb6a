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
    """A product [m, k] x [n, k]; `n` counts the columns of the result.

    `groups` > 0 adds a `length` operand of that many groups of rows; `length` is what a measurement
    puts there.
    """

    m: int
    n: int
    k: int
    op: str = "linear"
    dtype: DType = DType.BF16
    activation: str = "none"
    bias: bool = False
    splits: int = 0
    groups: int = 0
    length: int = 0

    @property
    def operands(self) -> dict[str, TensorType]:
        """The operands by name."""
        rows = self.n * (2 if self.op == "gated_linear" else 1)
        found = {
            "x": TensorType(self.dtype, (self.m, self.k)),
            "@w": TensorType(self.dtype, (rows, self.k)),
        }
        if self.bias:
            found["@bias"] = TensorType(DType.F32, (rows,))
        if self.groups:
            found["length"] = TensorType(DType.I32, (self.groups,))
        return found

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(self.operands.values())

    @property
    def node(self) -> Node:
        length = self.groups > 0
        attrs: object = LinearAttributes(
            activation=self.activation, bias=self.bias, length=length, dtype=self.dtype
        )
        if self.op == "gated_linear":
            attrs = GatedLinearAttributes(
                activation=self.activation, length=length, dtype=self.dtype
            )
        if self.op == "split_linear":
            attrs = SplitLinearAttributes(splits=self.splits, length=length)
        node = Node(op=self.op, inputs=tuple(self.operands), outputs=(), attrs=attrs)
        (result,) = infer(node, self.types)
        output = Value(name="out", type=result)
        return Node(op=self.op, inputs=node.inputs, outputs=(output,), attrs=attrs)

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(contiguous_view(name, type_) for name, type_ in self.operands.items())

    def call(self, family: Family, parameters: Parameters, device: Device) -> KernelCall:
        node = self.node
        results = (contiguous_view("out", node.output.type),)
        (call,) = family.calls(node, self.views, results, None, parameters, device)
        return call
