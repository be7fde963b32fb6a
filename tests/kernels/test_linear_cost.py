"""Expected costs of the linear family: the order that they give where nothing was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyc.compiler.ir.types import DType
from policyc.kernels.linear_cost import expected_us
from policyc.kernels.linear_tiles import Shape, Tile, rejection, tiles_for
from tests.kernels.cases import AMPERE, HOPPER, TestDevice

SHAPE = Shape(m=1024, n=2560, k=2048, dtype=DType.BF16, result_dtype=DType.BF16)
TILE = Tile(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=4)


def best(shape: Shape, device: TestDevice) -> Tile:
    """The cheapest tile that the device can run."""
    usable = [tile for tile in tiles_for(shape) if not rejection(shape, tile, device)]
    return min(usable, key=lambda tile: (expected_us(shape, tile, device), tile.parameters))


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


def test_a_wide_tile_costs_less_of_a_step_than_two_narrow_ones() -> None:
    """Measured on an H200: 128 x 256 multiplies at 88 % of the peak, 128 x 128 at 70 %."""
    shape = replace(SHAPE, n=8192, k=16384)
    wide = replace(TILE, block_n=256)
    assert expected_us(shape, wide, HOPPER) < 0.9 * expected_us(shape, TILE, HOPPER)


def test_narrow_float32_products_are_summed() -> None:
    assert best(replace(SHAPE, m=64, n=32, k=1024, dtype=DType.F32), HOPPER).summed
