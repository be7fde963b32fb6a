"""Tiles of the linear family: reasons for rejection, shared memory, order of expected costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyc.compiler.ir.types import DType
from policyc.kernels.linear_tiles import (
    Shape,
    Tile,
    candidate_of,
    expected_us,
    rejection,
    shared_bytes,
    tile_of,
    tiles_for,
)
from policyc.kernels.spec import Candidate
from tests.kernels.cases import AMPERE, HOPPER, HOST, TestDevice

SHAPE = Shape(m=1024, n=2560, k=2048, dtype=DType.BF16, result_dtype=DType.BF16)
TILE = Tile(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=4)


def test_a_tile_survives_its_parameters() -> None:
    for tile in tiles_for(SHAPE):
        assert tile_of(tile.parameters) == tile
        assert tile.parameters == tuple(sorted(tile.parameters))


def test_a_group_of_rows_is_one_height_whatever_the_tile() -> None:
    assert TILE.group_m * TILE.block_m == 1024
    assert replace(TILE, block_m=64).group_m == 16


def test_offered_tiles_are_distinct() -> None:
    for shape in (SHAPE, replace(SHAPE, m=64), replace(SHAPE, dtype=DType.F32)):
        tiles = tiles_for(shape)
        assert len(set(tiles)) == len(tiles)


@pytest.mark.parametrize(
    ("shape", "tile", "device", "reason"),
    [
        (SHAPE, TILE, HOPPER, ""),
        (SHAPE, TILE, AMPERE, "131200 bytes of shared memory, 101376 a block"),
        (SHAPE, replace(TILE, num_stages=2), AMPERE, "compute capability 86 has none"),
        (replace(SHAPE, k=130), TILE, HOPPER, "rows of 260 bytes"),
        (replace(SHAPE, n=2561), replace(TILE, store_map=1), HOPPER, "result rows of 5122 bytes"),
        (replace(SHAPE, n=2561), TILE, HOPPER, ""),
        (replace(SHAPE, m=16), TILE, HOPPER, "128 rows a tile, the problem has 16"),
        (SHAPE, replace(TILE, prefetch=1), HOST, "no dependent launch"),
        (replace(SHAPE, splits=2), replace(TILE, persistent=1), HOPPER, "partial sums"),
        (
            replace(SHAPE, k=320, splits=2),
            replace(TILE, block_k=128, num_stages=2),
            HOPPER,
            "ranges of 192",
        ),
    ],
)
def test_reasons(shape: Shape, tile: Tile, device: TestDevice, reason: str) -> None:
    found = rejection(shape, tile, device)
    assert reason in found and bool(found) == bool(reason)
    assert candidate_of(shape, tile, device).rejected == found


def test_shared_memory_counts_stages_and_a_persistent_result() -> None:
    assert shared_bytes(SHAPE, TILE) == 4 * (128 + 128) * 64 * 2 + 4 * 32
    kept = replace(TILE, persistent=1, store_map=1)
    assert shared_bytes(SHAPE, kept) - shared_bytes(SHAPE, TILE) == 128 * 128 * 2
    gated = replace(SHAPE, gated=True)
    assert shared_bytes(gated, kept) - shared_bytes(gated, TILE) == 128 * 64 * 2


def best(shape: Shape, device: TestDevice) -> Tile:
    found: list[Candidate] = [candidate_of(shape, tile, device) for tile in tiles_for(shape)]
    usable = [candidate for candidate in found if not candidate.rejected]
    return tile_of(min(usable, key=lambda c: (c.cost, c.parameters)).parameters)


def test_default_fills_one_wave_where_a_tile_width_allows_it() -> None:
    tile = best(SHAPE, HOPPER)
    tiles = -(-SHAPE.m // tile.block_m) * -(-SHAPE.n // tile.width)
    assert tile.width == 160 and tiles == 128


def test_default_of_few_rows_streams_weights_through_narrow_tiles() -> None:
    tile = best(replace(SHAPE, m=64, k=1024), HOPPER)
    assert tile.prefetch and tile.block_n <= 64


@pytest.mark.parametrize("m", [16, 64, 128, 1024])
@pytest.mark.parametrize("k", [130, 592])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
@pytest.mark.parametrize("device", [HOPPER, AMPERE])
def test_every_problem_has_a_default(m: int, k: int, dtype: DType, device: TestDevice) -> None:
    shape = Shape(m=m, n=7, k=k, dtype=dtype, result_dtype=dtype)
    assert best(shape, device) in tiles_for(shape)


def test_cost_grows_with_the_work() -> None:
    double = replace(SHAPE, k=2 * SHAPE.k)
    assert expected_us(double, TILE, HOPPER) > 1.5 * expected_us(SHAPE, TILE, HOPPER)


def test_tiles_that_no_kernel_has_are_refused() -> None:
    with pytest.raises(AssertionError, match="one tensor map stores one width"):
        replace(TILE, side_n=32, store_map=1)
    with pytest.raises(AssertionError, match="pointer tiles are plain"):
        replace(TILE, maps=0, persistent=1)
