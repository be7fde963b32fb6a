"""Lowering: launches in order, workspace, and strides that a kernel cannot address."""

from __future__ import annotations

import pytest

from policyc.backends.errors import LoweringError
from policyc.backends.lower import distinct_sources
from policyc.compiler.ir.graph import Node, Rate
from policyc.compiler.ir.selection import Parameters
from policyc.compiler.ir.types import DType, TensorType
from policyc.kernels.families import family_of
from policyc.kernels.linear_spec import LinearFamily
from policyc.kernels.spec import Device, Family, KernelCall, View
from tests.backends.fixtures import lowered
from tests.passes.graphs import graph, linear, permuted, stage, toy_graph, value

BF16 = DType.BF16


def test_one_call_a_node_in_order() -> None:
    result = lowered(toy_graph())
    assert [item.work.name for item in result.calls] == ["qkv", "%0", "%1", "sum", "%4", "actions"]
    functions = [item.call.kernel.split(":")[0] for item in result.calls]
    assert functions == ["linear", "norm", "linear", "norm", "linear", "linear"]


def test_calls_that_differ_in_addresses_share_a_kernel() -> None:
    calls = lowered(toy_graph()).calls
    sources = distinct_sources(calls)
    assert calls[0].source == calls[2].source
    assert len(sources) == 4
    assert all(name == source.id for name, source in sources.items())


def test_workspace_is_handed_to_the_family() -> None:
    seen: list[View | None] = []

    class Greedy(LinearFamily):
        def scratch_bytes(
            self, node: Node, operands: tuple[TensorType, ...], parameters: Parameters
        ) -> int:
            return 640

        def calls(
            self,
            node: Node,
            operands: tuple[View, ...],
            results: tuple[View, ...],
            scratch: View | None,
            parameters: Parameters,
            device: Device,
        ) -> tuple[KernelCall, ...]:
            seen.append(scratch)
            return super().calls(node, operands, results, None, parameters, device)

    def families(op: str) -> Family:
        return Greedy() if op == "linear" else family_of(op)

    result = lowered(toy_graph(), families)
    assert result.memory.scratch["qkv"].size == 640
    assert seen[0] == View(base="scratch:qkv", offset=0, dtype=DType.U8, shape=(640,), strides=(1,))


def test_strides_that_the_kernel_cannot_address_name_the_node() -> None:
    nodes = (
        linear("x", "@w", value("%0", BF16, 64, 64)),
        permuted("%0", value("%1", BF16, 64, 64), 1, 0),
        linear("%1", "@w", value("y", BF16, 64, 64)),
    )
    whole = graph(
        ((value("x", BF16, 64, 64), Rate.STEP),),
        (value("@w", BF16, 64, 64),),
        (stage("s", Rate.STEP, *nodes),),
        ("y",),
    )
    with pytest.raises(LoweringError, match="stage s, y linear: .* Copy it first"):
        lowered(whole)
