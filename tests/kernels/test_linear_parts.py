"""Parts of the linear kernels: rows that nobody needs, in every kernel and layout of groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policyc.compiler.ir.attributes import (
    GatedLinearAttributes,
    LinearAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.types import Array, DType
from policyc.kernels.linear_spec import LinearFamily
from policyc.kernels.linear_tiles import Tile
from tests.kernels.cases import HOPPER, HOST, Case, Problem, Run, difference
from tests.kernels.compiling import compile_call
from tests.kernels.linear_cases import Product

FAMILY = LinearFamily()

TOLERANCE = 2e-6
"""float32 sums of some hundred products."""

POINTERS = Tile(block_m=16, block_n=32, block_k=32, num_warps=4, num_stages=2, maps=0)
MAPPED = replace(POINTERS, block_m=32, block_k=64, maps=1)
SIDE = replace(MAPPED, block_m=16, side_n=16)
STORED = replace(MAPPED, block_k=32, store_map=1)
PERSISTENT = replace(STORED, block_m=16, persistent=1)
RESIDENT = replace(MAPPED, block_k=128, num_stages=1, resident=1)
SUMMED = Tile(block_m=4, block_n=8, block_k=64, num_warps=4, num_stages=1, maps=0, summed=1)
BIG = Tile(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=4)
GATED = Product(m=968, n=16384, k=2048, op="gated_linear", activation="gelu_tanh", groups=1)


@pytest.mark.parametrize("tile", [POINTERS, MAPPED, SIDE, STORED, PERSISTENT, RESIDENT, SUMMED])
@pytest.mark.parametrize(
    "lengths",
    [(0,), (1,), (16,), (21,), (50,), (0, 0, 0), (17, 0, 5), (0, 30, 1), (4, 4, 4), (30, 30, 30)],
)
def test_needed_rows_are_computed_and_tiles_without_one_left_alone(
    tile: Tile, lengths: tuple[int, ...], interpreted: Run
) -> None:
    group = 50 if len(lengths) == 1 else 30  # three groups share tiles of 16 and of 32 rows
    rows = group * len(lengths)
    needed = np.concatenate([np.arange(group) < length for length in lengths])
    tiles = np.arange(rows) // tile.block_m
    touched = np.isin(tiles, tiles[needed])

    poisoned, finite = (bounded(rows, needed, lengths, poison) for poison in (True, False))
    (found,) = poisoned.run(FAMILY, tile.parameters, HOST, interpreted)
    if needed.any():
        error = difference(found[needed], poisoned.expected[0][needed])
        assert error.relative <= TOLERANCE, f"{lengths}: {error}"
    (found,) = finite.run(FAMILY, tile.parameters, HOST, interpreted)
    assert np.array_equal(np.isfinite(found).all(axis=1), touched)


def bounded(rows: int, needed: Array, lengths: tuple[int, ...], poison: bool) -> Case:
    """A product with row lengths; rows of x that nobody needs are NaN where poisoned."""
    problem = Problem(seed=7)
    x = problem.normal((rows, 128))
    if poison:
        x[np.logical_not(needed)] = np.nan
    problem.add(x)
    problem.add(problem.normal((96, 128), size=128**-0.5), name="@w")
    problem.add(np.array(lengths, np.int32), name="lengths")
    return problem.case("linear", LinearAttributes(length=True, dtype=DType.F32))


def test_lengths_of_partial_sums_and_of_gated_rows(interpreted: Run) -> None:
    problem = Problem(seed=1)
    problem.add(problem.normal((48, 200)))
    problem.add(problem.normal((40, 200), size=200**-0.5), name="@w")
    problem.add(np.array([20, 3], np.int32), name="lengths")
    for op, attrs in (
        ("split_linear", SplitLinearAttributes(splits=3, length=True)),
        ("gated_linear", GatedLinearAttributes(activation="silu", length=True, dtype=DType.F32)),
    ):
        case = problem.case(op, attrs)
        for tile in (POINTERS, replace(POINTERS, block_m=32)):
            (found,) = case.run(FAMILY, tile.parameters, HOST, interpreted)
            rows = np.r_[0:20, 24:27]
            error = difference(found[..., rows, :], case.expected[0][..., rows, :])
            assert error.relative <= TOLERANCE, f"{op}: {error}"


@pytest.mark.parametrize(
    "tile",
    [
        replace(BIG, prefetch=1),
        replace(BIG, block_n=256, num_stages=3, persistent=1, store_map=1),
        replace(BIG, num_stages=3, maps=0),
    ],
)
@pytest.mark.parametrize("groups", [1, 8])
def test_lengths_are_read_after_the_wait_and_cost_no_spill(tile: Tile, groups: int) -> None:
    bounded_product = replace(GATED, groups=groups)
    usage = compile_call(bounded_product.call(FAMILY, tile.parameters, HOPPER), 90)
    assert "wgmma.mma_async" in usage.ptx
    assert usage.ptx.index("griddepcontrol.wait") < usage.ptx.index("ld.global")
    assert usage.local_bytes == 0
