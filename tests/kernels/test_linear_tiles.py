"""Tiles of the linear family: reasons for rejection, shared memory, order of expected costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyc.compiler.ir.types import DType
from policyc.kernels.linear_tiles import (
    Shape,
    Tile,
    rejection,
    shared_bytes,
    tile_of,
    tiles_for,
)
from tests.kernels.cases import AMPERE, BLACKWELL, HOPPER, HOST, TestDevice

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


def test_shared_memory_counts_stages_and_a_persistent_result() -> None:
    assert shared_bytes(SHAPE, TILE) == 4 * (128 + 128) * 64 * 2 + 4 * 32
    kept = replace(TILE, persistent=1, store_map=1)
    assert shared_bytes(SHAPE, kept) - shared_bytes(SHAPE, TILE) == 128 * 128 * 2
    gated = replace(SHAPE, gated=True)
    assert shared_bytes(gated, kept) - shared_bytes(gated, TILE) == 128 * 64 * 2


def test_tiles_that_no_kernel_has_are_refused() -> None:
    with pytest.raises(AssertionError, match="one tensor map stores one width"):
        replace(TILE, side_n=32, store_map=1)
    with pytest.raises(AssertionError, match="pointer tiles are plain"):
        replace(TILE, maps=0, persistent=1)


def test_resident_tiles_hold_their_whole_range_in_one_or_two_steps() -> None:
    shape = replace(SHAPE, m=64, n=1024, k=4096, splits=8)
    offered = [tile for tile in tiles_for(shape) if tile.resident]
    assert {tile.block_k for tile in offered} == {512, 256}
    assert all(not rejection(shape, tile, HOPPER) for tile in offered)
    for other in (replace(shape, splits=3), replace(shape, splits=1), replace(shape, m=128)):
        assert not [tile for tile in tiles_for(other) if tile.resident]
    assert "wgmma only" in rejection(shape, offered[0], BLACKWELL)
    wrong = replace(offered[0], block_k=1024)
    assert rejection(shape, wrong, HOPPER) == "ranges of 512 columns, not a multiple of 1024"


def test_few_rows_may_take_a_full_height_through_maps_only() -> None:
    shape = replace(SHAPE, m=16)
    full = replace(TILE, block_m=64)
    assert not rejection(shape, full, HOPPER)
    assert rejection(shape, replace(full, maps=0), HOPPER).startswith("64 rows a tile")


def test_summed_tiles_are_for_plain_float32_products() -> None:
    narrow = replace(SHAPE, m=64, n=32, k=1024, dtype=DType.F32)
    assert any(tile.summed for tile in tiles_for(narrow))
    assert not any(tile.summed for tile in tiles_for(replace(narrow, splits=2)))
    assert not any(tile.summed for tile in tiles_for(SHAPE))


@pytest.mark.parametrize("m", [16, 64, 1024])
def test_a_sweep_of_all_tensor_map_tiles_stays_short(m: int) -> None:
    shape = replace(SHAPE, m=m, k=1024)
    assert sum(tile.maps for tile in tiles_for(shape)) <= 20
