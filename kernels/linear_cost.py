"""What a tile of the linear family should cost.

A model: it ranks tiles where nothing was measured, and is never shown as a measurement. Its numbers
were fitted to the first measurements on an H200.
"""

from __future__ import annotations

from policyc.compiler.ir.types import DType
from policyc.kernels.layout import blocks
from policyc.kernels.linear_tiles import Shape, Tile, shared_bytes
from policyc.kernels.spec import Device

_CLOCK_GHZ = 1.9

_FLOAT32_FLOP_PER_CLOCK = 32
"""Triton's float32 dot: each thread waits for its own chain of multiply-adds."""

_SUMMED_FLOP_PER_CLOCK = 64

_DRAM_BYTES_PER_CLOCK = 18
"""Per processor: 4.8 TB/s over 132 processors at 1.9 GHz. Source: NVIDIA H200 data sheet."""

_L2_BYTES_PER_CLOCK = 48
"""Per processor, read; three quarters of the 64 bytes a clock of the L2 port."""

_SHARED_BYTES_PER_CLOCK = 128
"""Per processor, read and written. Source: CUDA C++ Programming Guide, 32 banks of 4 bytes."""

_ISSUE = 1.08
"""Clocks of a step over what its multiplications or its shared memory take."""

_LATENCY_CLOCKS = 1000
"""From a load's issue to its data, from DRAM or a busy L2."""

_LAUNCH_US = 1.0

_POINTERS = 1.5
"""Time of a tile whose addresses every thread computes, over the time of one read by maps."""

_PREFETCHED = {0: 1.0, 1: 0.8, 2: 0.7}
"""Part of the time for the weights that is left where they travel while the predecessor runs."""

_RESIDENT = 0.6


def _flop_per_clock(tile: Tile, device: Device) -> float:
    """Dense multiply-adds x 2 of one processor. Source: NVIDIA data sheets, peak over clock."""
    capability = device.compute_capability
    if capability in (89, 120, 121):
        return 512
    if capability < 90:
        return 1024
    if tile.block_m < 64:
        return 1024  # mma.sync, which wgmma replaces from 64 rows on
    return 4096 * (1.0 if tile.maps else 0.85)


def _shared_traffic(shape: Shape, tile: Tile) -> int:
    """Bytes of shared memory that one step writes and reads: wgmma reads both operands from it.

    Every 64 rows read the columns of w once more, every accumulator the rows of x.
    """
    bytes_per_row = tile.block_k * shape.dtype.size_bytes
    written = tile.block_m + tile.width
    groups = blocks(tile.block_m, 64)
    accumulators = 2 if tile.side_n else 1
    read = groups * tile.width + accumulators * tile.block_m
    return (written + read) * bytes_per_row


def _step_clocks(shape: Shape, tile: Tile, device: Device) -> float:
    """One step of BLOCK_K of one tile."""
    flop = 2 * tile.block_m * tile.width * tile.block_k
    if tile.summed:
        read = (tile.block_m + tile.block_n) * tile.block_k * shape.dtype.size_bytes
        return flop / _SUMMED_FLOP_PER_CLOCK + read / _L2_BYTES_PER_CLOCK
    if shape.dtype is DType.F32:
        return max(flop / _FLOAT32_FLOP_PER_CLOCK, 2 * _LATENCY_CLOCKS)
    shared = _shared_traffic(shape, tile) / _SHARED_BYTES_PER_CLOCK
    return _ISSUE * max(flop / _flop_per_clock(tile, device), shared)


def expected_us(shape: Shape, tile: Tile, device: Device) -> float:
    """Model of a launch: the busiest processor's tiles and epilogues, or the weights from DRAM."""
    tiles = blocks(shape.m, tile.block_m) * blocks(shape.n, tile.width) * shape.splits
    share = blocks(tiles, device.sm_count)
    resident = max(
        1, min(device.shared_bytes_per_block // shared_bytes(shape, tile), 8 // tile.num_warps * 2)
    )
    steps = blocks(shape.split_k, tile.block_k)
    stalled = _LATENCY_CLOCKS / max(tile.num_stages - 1, 1)
    together = min(share, resident)
    rounds = blocks(share, together)
    clocks = steps * max(share * _step_clocks(shape, tile, device), rounds * stalled)
    edges = rounds * _edge_clocks(shape, tile)
    if tile.persistent:
        # The next tile's loads run under the epilogue, at the price of bookkeeping in every step.
        edges = edges - (rounds - 1) * _LATENCY_CLOCKS + 0.02 * clocks
    clocks = (clocks + edges) * (1.0 if tile.maps else _POINTERS)
    weights = shape.n * shape.k * shape.dtype.size_bytes
    travelled = _RESIDENT if tile.resident else _PREFETCHED[tile.prefetch]
    from_dram = travelled * weights / (device.sm_count * _DRAM_BYTES_PER_CLOCK)
    return _LAUNCH_US + max(clocks, from_dram) / (_CLOCK_GHZ * 1000)


def _edge_clocks(shape: Shape, tile: Tile) -> float:
    """First loads and epilogue of a tile."""
    values = tile.block_m * tile.width / (32 * tile.num_warps)
    epilogue = values * (40 if shape.gated else 6)
    first_loads = _LATENCY_CLOCKS * (0.7 if tile.prefetch else 1.0)
    return first_loads + epilogue
