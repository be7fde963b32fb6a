"""Kernels of few rows or columns: numbers by the interpreter, order of reads in machine code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyc.compiler.ir.attributes import (
    GatedLinearAttributes,
    LinearAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.types import DType
from policyc.kernels.layout import LayoutError
from policyc.kernels.linear_spec import LinearFamily
from policyc.kernels.linear_tiles import Tile
from policyc.kernels.spec import View
from tests.kernels.cases import HOPPER, HOST, Problem, Run, contiguous_view, difference
from tests.kernels.compiling import compile_call
from tests.kernels.linear_cases import Product

FAMILY = LinearFamily()

TOLERANCE = 2e-6
"""float32 sums of some hundred products."""

RESIDENT = Tile(block_m=16, block_n=32, block_k=128, num_warps=4, num_stages=1, resident=1)
SUMMED = Tile(block_m=2, block_n=8, block_k=64, num_warps=4, num_stages=1, maps=0, summed=1)
HEAD = Product(m=50, n=32, k=1024, dtype=DType.F32, bias=True)


def product(m: int, n: int, k: int, dtype: DType = DType.BF16) -> Problem:
    """Operands of a product; x is a window on a wider buffer whose other elements are NaN."""
    problem = Problem(seed=5)
    problem.add(problem.normal((m, k), dtype), within=(m + 1, k + 16), at=(1, 8))
    problem.add(problem.normal((n, k), dtype, size=k**-0.5), name="@w")
    return problem


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("splits", [1, 2])
def test_resident_sums(steps: int, splits: int, interpreted: Run) -> None:
    problem = product(50, 40, 256)
    attrs: object = LinearAttributes(activation="silu", dtype=DType.F32)
    op = "linear"
    if splits > 1:
        op, attrs = "split_linear", SplitLinearAttributes(splits=splits)
    tile = replace(RESIDENT, block_k=256 // splits // steps)
    case = problem.case(op, attrs)
    (found,) = case.run(FAMILY, tile.parameters, HOST, interpreted)
    assert difference(found, case.expected[0]).relative <= TOLERANCE


def test_resident_gate_and_up(interpreted: Run) -> None:
    attrs = GatedLinearAttributes(activation="gelu_tanh", dtype=DType.F32)
    case = product(20, 112, 128).case("gated_linear", attrs)
    (found,) = case.run(FAMILY, RESIDENT.parameters, HOST, interpreted)
    assert difference(found, case.expected[0]).relative <= TOLERANCE


@pytest.mark.parametrize(("m", "n", "k"), [(1, 7, 5), (9, 33, 64), (50, 32, 200)])
def test_sums_along_k(m: int, n: int, k: int, interpreted: Run) -> None:
    problem = product(m, n, k, DType.F32)
    problem.add(problem.normal((n,), DType.F32), name="@bias")
    attrs = LinearAttributes(activation="gelu_tanh", bias=True, dtype=DType.F32)
    case = problem.case("linear", attrs)
    (found,) = case.run(FAMILY, SUMMED.parameters, HOST, interpreted)
    assert difference(found, case.expected[0]).relative <= 1e-6


@pytest.mark.parametrize("width", [32, 64])
def test_weights_are_in_shared_memory_before_the_wait(width: int) -> None:
    tile = replace(RESIDENT, block_m=64, block_n=width, block_k=512)
    split = Product(m=50, n=1024, k=4096, op="split_linear", splits=8)
    usage = compile_call(split.call(FAMILY, tile.parameters, HOPPER), 90)
    before, after = usage.ptx.split("griddepcontrol.wait")
    loads = [half.count("cp.async.bulk.tensor.2d.shared") for half in (before, after)]
    assert loads[0] > 0 and loads[1] > 0
    assert "mbarrier.try_wait" in before and "wgmma.mma_async" in after
    assert usage.local_bytes == 0
    operands = (64 + width) * 512 * 2
    assert operands <= usage.shared_bytes <= operands + 1024


@pytest.mark.parametrize("is_weight", [True, False])
def test_summed_reads_before_the_wait_only_what_no_launch_writes(is_weight: bool) -> None:
    tile = Tile(block_m=2, block_n=8, block_k=1024, num_warps=8, num_stages=1, maps=0, summed=1)
    x, w, bias = HEAD.views
    w = w if is_weight else replace(w, base="computed")
    out = contiguous_view("out", HEAD.node.output.type)
    (call,) = FAMILY.calls(HEAD.node, (x, w, bias), (out,), None, tile.parameters, HOPPER)
    assert call.grid == (25, 4, 1)
    usage = compile_call(call, 90)
    before, after = usage.ptx.split("griddepcontrol.wait")
    assert ("ld.global" in before) == is_weight
    assert "ld.global" in after and usage.local_bytes == 0


def test_resident_call_and_what_it_refuses() -> None:
    split = Product(m=50, n=1024, k=4096, op="split_linear", splits=8)
    tile = replace(RESIDENT, block_m=64, block_k=256)
    call = split.call(FAMILY, tile.parameters, HOPPER)
    assert call.kernel == "linear_few_rows:resident_linear"
    assert call.grid == (32, 8, 1)
    assert dict(call.constants)["STEPS"] == 2
    x, w = split.views
    computed: View = replace(w, base="computed")
    out = contiguous_view("out", split.node.output.type)
    with pytest.raises(LayoutError, match="computed by the plan"):
        FAMILY.calls(split.node, (x, computed), (out,), None, tile.parameters, HOPPER)
