"""Linear kernels: numbers by Triton's interpreter over odd sizes, machine code by its compiler."""

from __future__ import annotations

import numpy as np
import pytest

from policyc.compiler.ir.attributes import (
    GatedLinearAttributes,
    LinearAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.types import DType
from policyc.kernels.linear_spec import LinearFamily
from policyc.kernels.linear_tiles import Shape, Tile, shared_bytes
from policyc.kernels.spec import Parameters
from tests.kernels.cases import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    HOST,
    Case,
    Problem,
    Run,
    TestDevice,
    difference,
)
from tests.kernels.compiling import compile_call
from tests.kernels.linear_cases import Product

FAMILY = LinearFamily()

# float32: sums of some hundred products. bf16: a unit in the last of 8 bits, since the interpreter
# truncates where the GPU rounds.
TOLERANCE = {DType.BF16: 2.0**-7, DType.F32: 2e-6}

MAPPED = Tile(block_m=32, block_n=32, block_k=64, num_warps=4, num_stages=2)
SIDE = Tile(block_m=16, block_n=32, side_n=16, block_k=64, num_warps=4, num_stages=2)
STORED = Tile(block_m=32, block_n=32, block_k=32, num_warps=4, num_stages=2, store_map=1)
PERSISTENT = Tile(
    block_m=16, block_n=32, block_k=64, num_warps=4, num_stages=2, persistent=1, store_map=1
)
POINTERS = Tile(block_m=16, block_n=32, block_k=32, num_warps=4, num_stages=2, maps=0)
WIDE_POINTERS = Tile(block_m=32, block_n=64, block_k=128, num_warps=4, num_stages=2, maps=0)


def product(
    m: int, n: int, k: int, *, dtype: DType = DType.BF16, seed: int = 1, bias: bool = False
) -> Problem:
    """Operands of a product; x is a window on a wider buffer whose other elements are NaN."""
    problem = Problem(seed=seed)
    problem.add(problem.normal((m, k), dtype), within=(m + 1, k + 16), at=(1, 8))
    problem.add(problem.normal((n, k), dtype, size=k**-0.5), name="@w")
    if bias:
        problem.add(problem.normal((n,), DType.F32), name="@bias")
    return problem


def check(case: Case, parameters: Parameters, run: Run, device: TestDevice = HOST) -> None:
    (found,) = case.run(FAMILY, parameters, device, run)
    error = difference(found, case.expected[0])
    tolerance = TOLERANCE[case.node.outputs[0].type.dtype]
    assert error.relative <= tolerance, f"{case.node.op} {dict(parameters)}: {error}"


@pytest.mark.parametrize(
    ("tile", "m", "n", "k"),
    [
        (POINTERS, 1, 7, 5),
        (POINTERS, 10, 33, 130),
        (WIDE_POINTERS, 50, 130, 304),
        (POINTERS, 48, 64, 64),
        (MAPPED, 10, 48, 304),
        (MAPPED, 50, 7, 64),
        (SIDE, 50, 100, 72),
        (STORED, 50, 72, 136),
        (PERSISTENT, 112, 72, 136),
    ],
)
def test_linear(tile: Tile, m: int, n: int, k: int, interpreted: Run) -> None:
    problem = product(m, n, k, bias=True)
    attrs = LinearAttributes(activation="gelu_tanh", bias=True, dtype=DType.F32)
    check(problem.case("linear", attrs), tile.parameters, interpreted)


@pytest.mark.parametrize("activation", ["none", "silu"])
def test_activations_and_absent_bias(activation: str, interpreted: Run) -> None:
    problem = product(9, 20, 40)
    attrs = LinearAttributes(activation=activation, dtype=DType.BF16)
    check(problem.case("linear", attrs), POINTERS.parameters, interpreted)


def test_float32_operands(interpreted: Run) -> None:
    problem = product(10, 32, 100, dtype=DType.F32, bias=True)
    attrs = LinearAttributes(bias=True, dtype=DType.F32)
    case = problem.case("linear", attrs)
    candidates = FAMILY.candidates(case.node, case.types, HOST)
    for candidate in candidates[:2]:
        assert not candidate.rejected
        check(case, candidate.parameters, interpreted)


@pytest.mark.parametrize(
    ("tile", "k"), [(POINTERS, 200), (WIDE_POINTERS, 200), (MAPPED, 256), (MAPPED, 64)]
)
@pytest.mark.parametrize("splits", [2, 3])
def test_partial_sums_with_short_and_empty_ranges(
    tile: Tile, k: int, splits: int, interpreted: Run
) -> None:
    problem = product(50, 40, k)
    check(
        problem.case("split_linear", SplitLinearAttributes(splits=splits)),
        tile.parameters,
        interpreted,
    )


@pytest.mark.parametrize("tile", [POINTERS, MAPPED, SIDE, PERSISTENT])
def test_gate_and_up_rows_in_turn(tile: Tile, interpreted: Run) -> None:
    problem = product(20, 112, 72)
    attrs = GatedLinearAttributes(activation="gelu_tanh", dtype=DType.F32)
    check(problem.case("gated_linear", attrs), tile.parameters, interpreted)


def test_rows_of_a_slice_of_a_batch(interpreted: Run) -> None:
    problem = Problem(seed=3)
    problem.add(problem.normal((2, 3, 40)), within=(2, 5, 40), at=(0, 1, 0))
    problem.add(problem.normal((24, 40)), name="@w")
    attrs = LinearAttributes(dtype=DType.F32)
    check(problem.case("linear", attrs), POINTERS.parameters, interpreted)


def test_large_negative_inputs_of_gelu_are_finite(interpreted: Run) -> None:
    problem = Problem(seed=4)
    problem.add(np.full((1, 16), -100.0, np.float32))
    problem.add(np.ones((16, 16), np.float32), name="@w")
    case = problem.case("linear", LinearAttributes(activation="gelu_tanh", dtype=DType.F32))
    (found,) = case.run(FAMILY, POINTERS.parameters, HOST, interpreted)
    assert np.array_equal(np.abs(found), np.zeros((1, 16)))


QKV = Product(m=968, n=2560, k=2048)
GATED = Product(m=968, n=16384, k=2048, op="gated_linear", activation="gelu_tanh")
FEW = Product(m=50, n=2560, k=1024)
SPLIT = Product(m=50, n=1024, k=4096, op="split_linear", splits=4)


def big(m: int, n: int, k: int, warps: int, stages: int, **more: int) -> Tile:
    return Tile(block_m=m, block_n=n, block_k=k, num_warps=warps, num_stages=stages, **more)


@pytest.mark.parametrize(
    ("product_", "tile"),
    [
        (QKV, big(128, 128, 64, 8, 4, side_n=32)),
        (GATED, big(128, 256, 64, 8, 4)),
        (GATED, big(128, 256, 64, 8, 4, persistent=1, store_map=1)),
        (FEW, big(64, 32, 128, 4, 4, prefetch=1)),
        (QKV, big(64, 256, 64, 4, 4, prefetch=2)),
        (SPLIT, big(64, 32, 128, 4, 4)),
    ],
)
def test_hopper_code_multiplies_by_warp_groups_and_spills_nothing(
    product_: Product, tile: Tile
) -> None:
    usage = compile_call(product_.call(FAMILY, tile.parameters, HOPPER), 90)
    assert "wgmma.mma_async" in usage.ptx
    assert "cp.async.bulk.tensor" in usage.ptx
    assert "griddepcontrol.wait" in usage.ptx
    assert ("prefetch.global.L2 [" in usage.ptx) == (tile.prefetch == 1)
    assert ("cp.async.bulk.prefetch.L2.global" in usage.ptx) == (tile.prefetch == 2)
    assert usage.local_bytes == 0
    assert usage.shared_bytes <= shared_bytes(shape_of(product_), tile) <= 232448


def shape_of(product_: Product) -> Shape:
    attrs = product_.node.output.type
    return Shape(
        m=product_.m,
        n=product_.types[1].shape[0],
        k=product_.k,
        dtype=product_.dtype,
        result_dtype=attrs.dtype,
        splits=max(product_.splits, 1),
        gated=product_.op == "gated_linear",
    )


@pytest.mark.parametrize(
    ("prefetch", "asked"), [(1, "prefetch.global.L2"), (2, "bulk.prefetch.L2.global")]
)
def test_weights_are_asked_for_before_the_wait_and_x_is_read_after_it(
    prefetch: int, asked: str
) -> None:
    tile = big(64, 32, 128, 4, 4, prefetch=prefetch)
    ptx = compile_call(FEW.call(FAMILY, tile.parameters, HOPPER), 90).ptx
    order = [
        ptx.index(word)
        for word in (
            "griddepcontrol.launch_dependents",
            asked,
            "griddepcontrol.wait",
            "cp.async.bulk.tensor",
        )
    ]
    assert order == sorted(order)
    assert ptx.rindex(asked) < ptx.index("griddepcontrol.wait")


@pytest.mark.parametrize(
    ("device", "product_"),
    [
        (AMPERE, Product(m=968, n=2048, k=2048)),
        (AMPERE, Product(m=50, n=4096, k=1024, op="gated_linear", activation="silu")),
        (BLACKWELL, FEW),
        (HOPPER, Product(m=50, n=32, k=1024, dtype=DType.F32, bias=True)),
        (AMPERE, Product(m=50, n=32, k=1024, dtype=DType.F32, bias=True)),
        (HOPPER, Product(m=10, n=7, k=130)),
    ],
)
def test_first_choice_compiles_on_other_targets_and_types(
    device: TestDevice, product_: Product
) -> None:
    found = FAMILY.candidates(product_.node, product_.types, device)
    best = min((c for c in found if not c.rejected), key=lambda c: (c.cost, c.parameters))
    call = product_.call(FAMILY, best.parameters, device)
    usage = compile_call(call, device.compute_capability)
    assert usage.local_bytes == 0
    assert usage.shared_bytes <= device.shared_bytes_per_block
    if device.compute_capability < 90:
        assert "griddepcontrol" not in usage.ptx
    if product_.dtype is DType.F32:
        assert "fma.rn.f32" in usage.ptx and ".tf32" not in usage.ptx
