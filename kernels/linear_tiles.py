"""Tiles that the linear family offers, why a device cannot run one, and what each should cost.

The cost is a model: it ranks tiles where nothing was measured, and is never shown as a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from policyc.compiler.ir.splits import split_width
from policyc.compiler.ir.types import DType
from policyc.kernels.layout import blocks, parameters, power_of_two
from policyc.kernels.spec import Candidate, Device, Parameters

GROUP_ROWS = 1024
"""Rows that share a tile of weights before the next one is read."""

SMALL_ROWS = 64
"""Up to so many rows one tile holds them all, and reading the weights decides the time."""

MAP_ALIGNMENT_BYTES = 16
"""Bases and strides of tensor maps. Source: cuTensorMapEncodeTiled, CUDA driver API."""

PREFETCH_REQUESTS = 1024
"""Most lines of 128 bytes that a program asks for before it waits: 8 a thread of 4 warps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A product [m, k] x [n, k]: `n` counts the rows of w (gate and up rows when gated)."""

    m: int
    n: int
    k: int
    dtype: DType
    result_dtype: DType
    splits: int = 1
    gated: bool = False

    @property
    def split_k(self) -> int:
        """Columns of K that one program sums."""
        return self.k if self.splits == 1 else split_width(self.k, self.splits)

    @property
    def result_columns(self) -> int:
        return self.n // 2 if self.gated else self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Parameters of one kernel: see `kernels/linear.py`.

    `side_n` widens the tile by a second accumulator; `maps` reads through tensor maps;
    `persistent` is the number of programs a processor keeps (0: one tile a program); `prefetch`
    asks for weights before the wait.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    side_n: int = 0
    maps: int = 1
    persistent: int = 0
    store_map: int = 0
    prefetch: int = 0

    def __post_init__(self) -> None:
        assert not (self.side_n and self.store_map), "one tensor map stores one width"
        assert self.maps or not (self.side_n or self.persistent), "pointer tiles are plain"

    @property
    def group_m(self) -> int:
        """Tiles of rows in a group."""
        return max(GROUP_ROWS // self.block_m, 1)

    @property
    def width(self) -> int:
        return self.block_n + self.side_n

    @property
    def parameters(self) -> Parameters:
        names = (*self.__dataclass_fields__,)
        return parameters(**{name: getattr(self, name) for name in names})


def tile_of(choice: Parameters) -> Tile:
    """The tile that `Tile.parameters` describes."""
    return Tile(**dict(choice))


def _tile(sizes: tuple[int, int, int, int, int], **more: int) -> Tile:
    block_m, block_n, block_k, num_warps, num_stages = sizes
    return Tile(
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        num_warps=num_warps,
        num_stages=num_stages,
        **more,
    )


# Many rows: one or two programs a processor, wgmma of 64 rows a warp group; side accumulators give
# tile counts just below the number of processors.
_MANY_ROWS = (
    _tile((128, 128, 64, 8, 3)),
    _tile((128, 128, 64, 8, 4)),
    _tile((128, 128, 64, 8, 4), prefetch=1),
    _tile((128, 128, 64, 4, 3)),
    _tile((128, 128, 128, 8, 3)),
    _tile((128, 128, 64, 8, 4), side_n=32),
    _tile((128, 128, 64, 8, 5), side_n=32, prefetch=1),
    _tile((128, 128, 64, 8, 4), side_n=64),
    _tile((128, 64, 64, 8, 4), side_n=32),
    _tile((128, 256, 64, 8, 3)),
    _tile((128, 256, 64, 8, 4)),
    _tile((128, 256, 64, 8, 3), persistent=1, store_map=1),
    _tile((128, 256, 64, 8, 4), persistent=1, store_map=1),
    _tile((128, 128, 64, 8, 4), persistent=1, store_map=1),
    _tile((128, 128, 64, 4, 3), persistent=2),
    _tile((256, 128, 64, 8, 3)),
    _tile((64, 256, 64, 4, 4)),
    _tile((64, 128, 64, 4, 4)),
    _tile((64, 128, 128, 4, 4), prefetch=1),
    _tile((128, 64, 64, 4, 4)),
    _tile((128, 64, 128, 8, 4), prefetch=1),
    _tile((64, 64, 128, 4, 4)),
    _tile((64, 64, 64, 4, 6), side_n=32),
    _tile((64, 64, 64, 4, 6)),
)

# Few rows: enough programs to fill the device, whole ranges of weights asked for before the wait.
_FEW_ROWS = tuple(
    _tile((rows, columns, depth, 4, stages), prefetch=prefetch)
    for rows, columns, depth, stages in (
        (64, 32, 128, 4),
        (64, 32, 128, 3),
        (64, 32, 64, 6),
        (64, 32, 256, 3),
        (64, 16, 128, 5),
        (64, 64, 128, 4),
        (64, 64, 128, 3),
        (64, 64, 64, 6),
        (64, 128, 64, 4),
        (32, 32, 128, 4),
        (32, 64, 128, 4),
        (16, 32, 128, 5),
        (16, 32, 256, 4),
        (16, 64, 128, 4),
    )
    for prefetch in (0, 1)
)

# Through pointers, for every device and alignment.
_POINTERS_MANY_ROWS = tuple(
    _tile(sizes, maps=0)
    for sizes in (
        (128, 128, 64, 8, 3),
        (128, 128, 32, 8, 3),
        (128, 128, 32, 4, 3),
        (128, 64, 64, 4, 3),
        (128, 64, 32, 4, 4),
        (64, 128, 64, 4, 3),
        (64, 64, 64, 4, 3),
        (64, 64, 32, 4, 4),
        (64, 32, 64, 4, 3),
    )
)
_POINTERS_FEW_ROWS = tuple(
    _tile((rows, columns, depth, 4, stages), maps=0, prefetch=prefetch)
    for rows, columns, depth, stages in (
        (64, 32, 128, 4),
        (64, 64, 64, 4),
        (64, 32, 64, 5),
        (64, 16, 128, 4),
        (32, 32, 128, 4),
        (32, 64, 64, 5),
        (16, 32, 128, 5),
        (16, 64, 128, 4),
        (16, 32, 64, 4),
    )
    for prefetch in (0, 1)
)
_FLOAT32 = tuple(
    _tile(sizes, maps=0)
    for sizes in (
        (16, 16, 64, 4, 3),
        (16, 32, 32, 4, 3),
        (32, 32, 32, 4, 3),
        (64, 32, 32, 4, 3),
        (64, 64, 16, 4, 3),
        (64, 64, 32, 8, 3),
    )
)


def tiles_for(shape: Shape) -> tuple[Tile, ...]:
    """Every tile worth a thought for the shape, whatever the device."""
    if shape.dtype is DType.F32:
        return _FLOAT32
    if shape.m > SMALL_ROWS:
        return _MANY_ROWS + _POINTERS_MANY_ROWS
    return _FEW_ROWS + _POINTERS_FEW_ROWS


def candidate_of(shape: Shape, tile: Tile, device: Device) -> Candidate:
    """The tile as a candidate: its reason for rejection, and its expected cost in microseconds."""
    return Candidate(
        parameters=tile.parameters,
        cost=round(expected_us(shape, tile, device), 3),
        rejected=rejection(shape, tile, device),
    )


def rejection(shape: Shape, tile: Tile, device: Device) -> str:
    """Why the device cannot run the tile on this shape; empty if it can."""
    needed = shared_bytes(shape, tile)
    if needed > device.shared_bytes_per_block:
        return f"{needed} bytes of shared memory, {device.shared_bytes_per_block} a block"
    if tile.block_m >= 2 * power_of_two(max(shape.m, 8)):
        return f"{tile.block_m} rows a tile, the problem has {shape.m}"
    if tile.prefetch and not device.has_dependent_launch:
        return "prefetch before the wait, no dependent launch"
    return _map_rejection(shape, tile, device) if tile.maps else ""


def _map_rejection(shape: Shape, tile: Tile, device: Device) -> str:
    if not device.has_tensor_maps:
        return f"tensor maps, compute capability {device.compute_capability} has none"
    row_bytes = shape.k * shape.dtype.size_bytes
    if row_bytes % MAP_ALIGNMENT_BYTES:
        return f"rows of {row_bytes} bytes, tensor maps need multiples of {MAP_ALIGNMENT_BYTES}"
    result_bytes = shape.result_columns * shape.result_dtype.size_bytes
    if tile.store_map and result_bytes % MAP_ALIGNMENT_BYTES:
        return f"result rows of {result_bytes} bytes, tensor maps need {MAP_ALIGNMENT_BYTES}s"
    if shape.splits > 1 and (tile.persistent or tile.store_map):
        return "partial sums are stored through pointers, one tile a program"
    if shape.splits > 1 and shape.split_k % tile.block_k:
        return f"ranges of {shape.split_k} columns, not a multiple of {tile.block_k}"
    return ""


def shared_bytes(shape: Shape, tile: Tile) -> int:
    """Upper bound of a program's shared memory: stages of operands, the result on its way out."""
    operands = (tile.block_m + tile.width) * tile.block_k * shape.dtype.size_bytes
    columns = tile.block_n // 2 if shape.gated else tile.block_n
    result = tile.block_m * columns * shape.result_dtype.size_bytes
    barriers = 32 * tile.num_stages if tile.maps else 0
    if tile.persistent:
        return operands * tile.num_stages + result + barriers
    return max(operands * tile.num_stages, result) + barriers


_CLOCK_GHZ = 1.7
_FLOAT32_FLOP_PER_CLOCK = 256
_DRAM_BYTES_PER_CLOCK = 18
"""Per processor: 4.8 TB/s over 132 processors at 1.9 GHz. Source: NVIDIA H200 data sheet."""

_L2_BYTES_PER_CLOCK = 48
"""Per processor, read; three quarters of the 64 bytes a clock of the L2 port."""

_LATENCY_CLOCKS = 1000
"""From a load's issue to its data, from DRAM or a busy L2."""

_LAUNCH_US = 1.0


def _flop_per_clock(shape: Shape, tile: Tile, device: Device) -> float:
    """Dense multiply-adds x 2 of one processor. Source: NVIDIA data sheets, peak over clock."""
    if shape.dtype is DType.F32:
        return _FLOAT32_FLOP_PER_CLOCK
    capability = device.compute_capability
    if capability in (89, 120, 121):
        return 512
    if capability < 90:
        return 1024
    if tile.block_m < 64:
        return 1024  # mma.sync, which wgmma replaces from 64 rows on
    # A warp group alone waits for its own barriers; narrow tiles read shared memory more often.
    alone = 0.85 if tile.num_warps == 4 else 1.0
    narrow = {16: 0.4, 32: 0.6, 64: 0.8}.get(tile.block_n, 1.0)
    pointers = 1.0 if tile.maps else 0.85
    return 4096 * 0.85 * alone * narrow * pointers


def expected_us(shape: Shape, tile: Tile, device: Device) -> float:
    """Model of a launch: the busiest processor's tiles and epilogues, or the weights from DRAM."""
    tiles = blocks(shape.m, tile.block_m) * blocks(shape.n, tile.width) * shape.splits
    share = blocks(tiles, device.sm_count)
    resident = max(
        1, min(device.shared_bytes_per_block // shared_bytes(shape, tile), 8 // tile.num_warps * 2)
    )
    steps = blocks(shape.split_k, tile.block_k)
    flop = 2 * tile.block_m * tile.width * tile.block_k
    read = (tile.block_m + tile.width) * tile.block_k * shape.dtype.size_bytes
    busy = max(flop / _flop_per_clock(shape, tile, device), read / _L2_BYTES_PER_CLOCK)
    stalled = _LATENCY_CLOCKS / max(tile.num_stages - 1, 1)
    together = min(share, resident)
    clocks = steps * max(share * busy, blocks(share, together) * stalled)
    rounds = blocks(share, together)
    edges = rounds * _edge_clocks(shape, tile)
    if tile.persistent:
        # The next tile's loads run under the epilogue, at the price of bookkeeping in every step.
        edges = edges - (rounds - 1) * _LATENCY_CLOCKS + 0.02 * clocks
    clocks = (clocks + edges) * (1.0 if tile.maps else 1.05)
    weights = shape.n * shape.k * shape.dtype.size_bytes
    # Prefetched weights travel while the predecessor still runs.
    from_dram = (
        weights / (device.sm_count * _DRAM_BYTES_PER_CLOCK) * (0.6 if tile.prefetch else 1.0)
    )
    return _LAUNCH_US + max(clocks, from_dram) / (_CLOCK_GHZ * 1000)


def _edge_clocks(shape: Shape, tile: Tile) -> float:
    """First loads and epilogue of a tile."""
    values = tile.block_m * tile.width / (32 * tile.num_warps)
    epilogue = values * (12 if shape.gated else 6)
    first_loads = _LATENCY_CLOCKS * (0.7 if tile.prefetch else 1.0)
    return first_loads + epilogue
