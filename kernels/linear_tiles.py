"""Tiles that the linear family offers, and why a device cannot run one."""

from __future__ import annotations

from dataclasses import dataclass

from policyc.compiler.ir.splits import split_width
from policyc.compiler.ir.types import DType
from policyc.kernels.layout import parameters, power_of_two
from policyc.kernels.spec import Device, Parameters

GROUP_ROWS = 1024
"""Rows that share a tile of weights before the next one is read."""

FEWEST_ROWS = 16
"""Up to so many rows mma.sync wastes none of a tile; wgmma multiplies 64."""

MAP_COLUMNS = 64
"""Columns of bf16 in the widest swizzle of a tensor map: 128 bytes."""

WGMMA_CAPABILITY = 90
"""The one compute capability with wgmma. Source: PTX ISA, wgmma: sm_90a."""

SMALL_ROWS = 64
"""Up to so many rows one tile holds them all, and reading the weights decides the time."""

MAP_ALIGNMENT_BYTES = 16
"""Bases and strides of tensor maps. Source: cuTensorMapEncodeTiled, CUDA driver API."""

PREFETCH_REQUESTS = 1024
"""Most lines of 128 bytes that a program asks for before it waits: 8 a thread of 4 warps."""

BULK_PREFETCH_BYTES = 512 << 10
"""Most bytes that a program asks for in bulk: what many programs ask for must fit into L2."""

LARGEST_RESIDENT_K = 1024
"""Columns of the longest step of `resident_linear`: more of x would not fit beside the weights."""


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
    asks for weights before the wait, in lines (1) or in bulk (2); `resident` holds a tile's weights
    for all of its K; `summed` adds products up along K without matrix units.
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
    resident: int = 0
    summed: int = 0

    def __post_init__(self) -> None:
        assert not (self.side_n and self.store_map), "one tensor map stores one width"
        plain = not (self.side_n or self.persistent or self.resident)
        assert self.maps or plain, "pointer tiles are plain"

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


# Many rows: one or two programs a processor, wgmma of 64 rows a warp group. Shared memory is what
# limits: 128 x 256 reads and writes the least of it for a product. Side accumulators give tile
# counts just below the number of processors.
_MANY_ROWS = (
    _tile((128, 256, 64, 8, 3)),
    _tile((128, 256, 64, 8, 4)),
    _tile((128, 256, 64, 8, 4), prefetch=2),
    _tile((128, 256, 64, 8, 3), persistent=1, store_map=1),
    _tile((128, 256, 64, 8, 4), persistent=1, store_map=1),
    _tile((64, 256, 64, 4, 4)),
    _tile((64, 256, 64, 4, 4), prefetch=2),
    _tile((128, 128, 64, 8, 4)),
    _tile((128, 128, 64, 8, 4), prefetch=1),
    _tile((128, 128, 64, 8, 4), prefetch=2),
    _tile((128, 128, 64, 8, 4), persistent=1, store_map=1),
    _tile((128, 128, 64, 8, 3)),
    _tile((128, 128, 64, 4, 3)),
    _tile((128, 128, 64, 8, 4), side_n=32),
    _tile((128, 128, 64, 8, 5), side_n=32, prefetch=1),
    _tile((128, 128, 64, 8, 4), side_n=64),
    _tile((64, 128, 64, 4, 4)),
    _tile((64, 128, 128, 4, 4), prefetch=1),
    _tile((128, 64, 128, 8, 4), prefetch=1),
    _tile((128, 64, 128, 8, 4), prefetch=2),
)

# Few rows: enough programs to fill the device, and weights asked for before the wait. A program
# that leaves half of the shared memory free lets its successor ask for weights beside it.
_FEW_ROWS = (
    _tile((64, 64, 128, 4, 4)),
    _tile((64, 64, 128, 4, 4), prefetch=1),
    _tile((64, 64, 128, 4, 4), prefetch=2),
    _tile((64, 64, 128, 4, 3), prefetch=2),
    _tile((64, 64, 64, 4, 4), prefetch=2),
    _tile((64, 64, 256, 4, 2), prefetch=2),
    _tile((64, 32, 256, 4, 3)),
    _tile((64, 32, 256, 4, 3), prefetch=1),
    _tile((64, 32, 256, 4, 3), prefetch=2),
    _tile((64, 32, 256, 4, 2), prefetch=2),
    _tile((64, 32, 128, 4, 4), prefetch=1),
    _tile((64, 32, 128, 4, 4), prefetch=2),
    _tile((64, 16, 128, 4, 5)),
    _tile((64, 16, 128, 4, 5), prefetch=2),
)
_FEWEST_ROWS = (
    _tile((16, 32, 256, 4, 4)),
    _tile((16, 32, 256, 4, 4), prefetch=1),
    _tile((16, 32, 256, 4, 4), prefetch=2),
    _tile((16, 64, 128, 4, 4)),
    _tile((16, 64, 128, 4, 4), prefetch=2),
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


_SUMMED = tuple(
    _tile((rows, columns, depth, warps, 1), maps=0, summed=1)
    for rows, columns, depth, warps in (
        (2, 8, 1024, 8),
        (1, 8, 1024, 4),
        (4, 8, 1024, 8),
        (2, 4, 1024, 4),
        (1, 16, 1024, 8),
        (4, 8, 256, 4),
        (4, 32, 32, 4),
        (2, 64, 32, 4),
    )
)

_SHORTEST_SUM = 32

_MOST_SUMMED_STEPS = 8
"""Steps are unrolled."""


def tiles_for(shape: Shape) -> tuple[Tile, ...]:
    """Every tile worth a thought for the shape, whatever the device."""
    if shape.dtype is DType.F32:
        if shape.gated or shape.splits > 1:
            return _FLOAT32
        longest = power_of_two(max(shape.k, _SHORTEST_SUM))
        steps = ((tile, longest // tile.block_k) for tile in _SUMMED)
        return tuple(tile for tile, count in steps if 1 <= count <= _MOST_SUMMED_STEPS) + _FLOAT32
    if shape.m > SMALL_ROWS:
        return _MANY_ROWS + _POINTERS_MANY_ROWS
    few: tuple[Tile, ...] = _FEW_ROWS
    if shape.m <= FEWEST_ROWS:
        few = _FEWEST_ROWS + tuple(tile for tile in few if tile.prefetch == 2)
    return _resident(shape) + few + _POINTERS_FEW_ROWS


def _resident(shape: Shape) -> tuple[Tile, ...]:
    """Tiles that hold all their weights: in one step of K, or in two that halve the room for x."""
    depth = shape.split_k
    if depth != power_of_two(depth) or depth > LARGEST_RESIDENT_K or shape.k % depth:
        return ()
    one_step = tuple(_tile((64, width, depth, 4, 1), resident=1) for width in (32, 64))
    if shape.m <= FEWEST_ROWS and depth <= LARGEST_RESIDENT_K // 2:  # mma.sync: w in registers
        one_step += (_tile((16, 32, depth, 4, 1), resident=1),)
    half = depth // 2
    halves = tuple(_tile((64, width, half, 4, 1), resident=1) for width in (16, 32, 64))
    return one_step + (halves if half >= MAP_COLUMNS else ())


def rejection(shape: Shape, tile: Tile, device: Device) -> str:
    """Why the device cannot run the tile on this shape; empty if it can."""
    needed = shared_bytes(shape, tile)
    if needed > device.shared_bytes_per_block:
        return f"{needed} bytes of shared memory, {device.shared_bytes_per_block} a block"
    if tile.block_m >= 2 * power_of_two(max(shape.m, 8)) and not _is_free_height(tile):
        return f"{tile.block_m} rows a tile, the problem has {shape.m}"
    if tile.prefetch and not device.has_dependent_launch:
        return "prefetch before the wait, no dependent launch"
    return _map_rejection(shape, tile, device) if tile.maps else ""


def _is_free_height(tile: Tile) -> bool:
    """Do rows beyond the problem cost next to nothing? Tensor maps fill them without reading."""
    return bool(tile.maps) and tile.block_m == SMALL_ROWS


def _map_rejection(shape: Shape, tile: Tile, device: Device) -> str:
    if tile.resident and device.compute_capability != WGMMA_CAPABILITY:
        return (
            f"weights stay in shared memory for wgmma only, compute capability "
            f"{device.compute_capability} has none"
        )
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
    if (shape.splits > 1 or tile.resident) and shape.split_k % tile.block_k:
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
