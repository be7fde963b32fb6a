"""Offers of the families for a graph."""

from __future__ import annotations

import pytest

from policyc.backends.errors import LoweringError
from policyc.backends.offers import collect_offers, counter_sizes, scratch_sizes
from policyc.backends.views import resolve_views
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.selection import Candidate, Parameters
from policyc.compiler.ir.types import TensorType
from policyc.kernels.families import family_of
from policyc.kernels.linear_spec import LinearFamily
from policyc.kernels.spec import Device, Family
from policyc.passes.select_kernels import select_kernels
from policyc.profiles.loader import load_profile
from tests.passes.graphs import toy_graph


class CountingFamily(LinearFamily):
    """A linear family that wants workspace and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def candidates(
        self, node: Node, operands: tuple[TensorType, ...], device: Device
    ) -> tuple[Candidate, ...]:
        self.asked += 1
        return super().candidates(node, operands, device)

    def scratch_bytes(
        self, node: Node, operands: tuple[TensorType, ...], parameters: Parameters
    ) -> int:
        return 8 * node.output.type.shape[-1]

    def counter_bytes(
        self, node: Node, operands: tuple[TensorType, ...], parameters: Parameters
    ) -> int:
        return 4 if node.output.name == "%4" else 0


def test_equal_problems_are_asked_once() -> None:
    counting, device = CountingFamily(), load_profile("h200")

    def families(op: str) -> Family:
        return counting if op == "linear" else family_of(op)

    whole = toy_graph()
    work = resolve_views(whole).work
    offers = collect_offers(work, device, families)
    assert list(offers) == ["qkv", "%0", "%1", "sum", "%4", "actions"]
    assert offers["qkv"].problem == offers["%1"].problem != offers["%4"].problem
    assert counting.asked == 2
    selection = select_kernels(whole, offers, {})
    sizes = scratch_sizes(work, selection, families)
    assert sizes == {"qkv": 768, "%1": 768, "%4": 256, "actions": 256}
    assert counter_sizes(work, selection, families) == {"%4": 4}


def test_op_without_a_family_names_the_node() -> None:
    def families(op: str) -> Family:
        return family_of("no_such_op" if op == "rms_norm" else op)

    work = resolve_views(toy_graph()).work
    with pytest.raises(LoweringError, match="stage observe, %0 rms_norm: no kernel for op no_such"):
        collect_offers(work, load_profile("h200"), families)
