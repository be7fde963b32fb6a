"""The attention family: one flash kernel, split over the keys where queries leave a GPU idle."""

from __future__ import annotations

from dataclasses import dataclass

from policyc.compiler.ir.attributes import AttentionAttributes
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.types import DType, TensorType
from policyc.kernels.layout import (
    Constant,
    axis_strides,
    blocks,
    kernel_call,
    parameters,
    power_of_two,
    require_lengths,
    require_unit_stride,
)
from policyc.kernels.spec import (
    Argument,
    Candidate,
    Device,
    KernelCall,
    Parameters,
    Problem,
    View,
    counters_view,
)

LOG2_E = 1.4426950408889634

_TILES_BF16 = (
    (128, 32, 8, 2),
    (128, 64, 8, 2),
    (128, 128, 8, 2),
    (64, 128, 4, 2),
    (64, 64, 4, 2),
    (64, 64, 8, 2),
    (64, 32, 4, 2),
    (64, 32, 4, 3),
    (64, 32, 8, 2),
    (32, 64, 4, 2),
    (32, 32, 4, 3),
    (16, 64, 4, 2),
    (16, 64, 4, 3),
    (16, 32, 4, 3),
)
"""block_m, block_n, num_warps, num_stages. No single stage: 64 x 64 x 72 so read outside its
buffers on an H200 (Triton 3.6)."""

_TILES_F32 = ((16, 16, 4, 1), (32, 32, 4, 1), (16, 32, 8, 1))
"""IEEE products run on the ordinary units; small tiles keep them in registers."""

_WIDEST_HEAD = 256

_ACCUMULATORS = 128
_WARP_GROUP_ACCUMULATORS = 168
_TIGHT_ACCUMULATORS = 24
"""More float32 accumulators a thread spill. Warp-group products read their operands from shared
memory and leave more registers free; a second segment takes some. Found by compiling every tile at
head dimensions 72 and 256."""

_MOST_SPLITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Sizes of one problem; `rows` are the queries of all heads that share a key/value head."""

    batch: int
    queries: int
    keys: int
    second_keys: int
    heads: int
    kv_heads: int
    width: int
    dtype: DType

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        return self.queries * self.group

    @property
    def columns(self) -> tuple[int, int]:
        """The head dimension as one or two blocks of columns: 256 -> (256, 0), 72 -> (64, 16)."""
        whole = max(power_of_two(self.width), 16)
        main = whole // 2
        rest = max(power_of_two(self.width - main), 16)
        return (main, rest) if main >= 16 and main + rest < whole else (whole, 0)

    def key_blocks(self, block_n: int) -> int:
        return blocks(self.keys, block_n) + blocks(self.second_keys, block_n)


class AttentionFamily:
    """Softmax attention; heads that share keys are packed into the rows of a tile."""

    ops = ("attention",)

    def problem(self, node: Node, operands: tuple[TensorType, ...]) -> Problem:
        shape = _shape(_attributes(node), operands)
        keys = str(shape.keys)
        if _attributes(node).length:
            keys = f"<={keys}"
        if shape.second_keys:
            keys = f"{keys}+{shape.second_keys}"
        queries = f"<={shape.queries}" if _attributes(node).query_length else str(shape.queries)
        key = (
            f"attention b={shape.batch} t={queries} s={keys} "
            f"h={shape.heads}/{shape.kv_heads} d={shape.width} "
            f"{shape.dtype.value}->{node.output.type.dtype.value}"
        )
        return Problem(op="attention", key=key)

    def candidates(
        self, node: Node, operands: tuple[TensorType, ...], device: Device
    ) -> tuple[Candidate, ...]:
        shape = _shape(_attributes(node), operands)
        tiles = _TILES_BF16 if shape.dtype is DType.BF16 else _TILES_F32
        return tuple(
            _candidate(shape, tile, splits, device)
            for tile in tiles
            for splits in _split_choices(shape, tile, device)
        )

    def scratch_bytes(
        self, node: Node, operands: tuple[TensorType, ...], parameters: Parameters
    ) -> int:
        shape, splits = _shape(_attributes(node), operands), dict(parameters)["splits"]
        if splits == 1:
            return 0
        rows = splits * shape.batch * shape.kv_heads * shape.rows
        return 4 * rows * (shape.width + 2)

    def counter_bytes(
        self, node: Node, operands: tuple[TensorType, ...], parameters: Parameters
    ) -> int:
        shape, settings = _shape(_attributes(node), operands), dict(parameters)
        if settings["splits"] == 1:
            return 0
        return 4 * blocks(shape.rows, settings["block_m"]) * shape.batch * shape.kv_heads

    def calls(
        self,
        node: Node,
        operands: tuple[View, ...],
        results: tuple[View, ...],
        scratch: View | None,
        parameters: Parameters,
        device: Device,
    ) -> tuple[KernelCall, ...]:
        attrs, settings = _attributes(node), dict(parameters)
        types = tuple(TensorType(view.dtype, view.shape) for view in operands)
        shape = _shape(attrs, types)
        for view in (*operands[:3], *_second(attrs, operands), *results):
            require_unit_stride(view, "attention operand")
        for length in (_length(attrs, operands), _query_length(attrs, operands)):
            require_lengths(length, shape.batch, "attention")
        targets: _Targets = (results[0], None, None, None)
        if settings["splits"] > 1:
            assert scratch is not None, "attention with splits has no workspace"
            partial, statistics = _workspace(shape, settings["splits"], scratch)
            counters = counters_view(node, self.counter_bytes(node, types, parameters))
            targets = (results[0], partial, statistics, counters)
        return (_tile_call(attrs, shape, operands, targets, settings, device),)


_Targets = tuple[View, View | None, View | None, View | None]
"""The result; partial results, their statistics and counters where the keys are split."""


def _attributes(node: Node) -> AttentionAttributes:
    assert isinstance(node.attrs, AttentionAttributes), f"{node.op}: {type(node.attrs).__name__}"
    return node.attrs


def _shape(attrs: AttentionAttributes, operands: tuple[TensorType, ...]) -> _Shape:
    batch, queries, heads, width = operands[0].shape
    second = operands[3 + attrs.length].shape[1] if attrs.second else 0
    return _Shape(
        batch=batch,
        queries=queries,
        keys=operands[1].shape[1],
        second_keys=second,
        heads=heads,
        kv_heads=operands[1].shape[2],
        width=width,
        dtype=operands[0].dtype,
    )


def _length(attrs: AttentionAttributes, operands: tuple[View, ...]) -> View | None:
    return operands[3] if attrs.length else None


def _second(attrs: AttentionAttributes, operands: tuple[View, ...]) -> tuple[View, ...]:
    """Keys and values of the second segment, or nothing."""
    start = 3 + attrs.length
    return operands[start : start + 2] if attrs.second else ()


def _query_length(attrs: AttentionAttributes, operands: tuple[View, ...]) -> View | None:
    return operands[-1] if attrs.query_length else None


def _split_choices(
    shape: _Shape, tile: tuple[int, int, int, int], device: Device
) -> tuple[int, ...]:
    """1, and the numbers of splits that fill the processors once and half, where queries do not."""
    block_m, block_n = tile[:2]
    programs = blocks(shape.rows, block_m) * shape.batch * shape.kv_heads
    most = min(device.sm_count // programs, shape.key_blocks(block_n), _MOST_SPLITS)
    return tuple(sorted({1, max(most // 2, 1), max(most, 1)}))


def _candidate(
    shape: _Shape, tile: tuple[int, int, int, int], splits: int, device: Device
) -> Candidate:
    block_m, block_n, warps, stages = tile
    return Candidate(
        parameters=parameters(
            block_m=block_m, block_n=block_n, num_stages=stages, num_warps=warps, splits=splits
        ),
        cost=_cost(shape, tile, splits, device),
        rejected=_rejection(shape, tile, device),
    )


def _uses_warp_groups(block_m: int, dtype: DType, device: Device) -> bool:
    """Does Triton choose the warp-group products of compute capability 9.0 for this tile?"""
    return dtype is DType.BF16 and block_m >= 64 and device.compute_capability // 10 == 9


def _rejection(shape: _Shape, tile: tuple[int, int, int, int], device: Device) -> str:
    """Why the device cannot run a tile, or the empty string."""
    block_m, block_n, warps, _ = tile
    width = sum(shape.columns)
    if shape.width > _WIDEST_HEAD:
        return f"head of {shape.width}, at most {_WIDEST_HEAD} fit in registers"
    need = shared_bytes(shape.dtype, width, tile, device)
    if need > device.shared_bytes_per_block:
        return f"needs {need} bytes of shared memory, a block has {device.shared_bytes_per_block}"
    grouped = _uses_warp_groups(block_m, shape.dtype, device)
    most = _WARP_GROUP_ACCUMULATORS if grouped else _ACCUMULATORS
    if grouped and shape.second_keys:
        most -= _TIGHT_ACCUMULATORS
    accumulators = block_m * (width + block_n) // (32 * warps)
    if accumulators > most:
        return f"{accumulators} accumulators a thread, at most {most} fit in registers"
    if block_m >= 2 * max(shape.rows, 16):
        return f"tile of {block_m} rows, the problem has {shape.rows}"
    return ""


def shared_bytes(dtype: DType, width: int, tile: tuple[int, int, int, int], device: Device) -> int:
    """Shared memory of a tile: queries, keys and values of each stage, weights between products.

    Warp-group products hold one pair of key and value blocks a stage and keep the weights in
    registers; the others need one pair fewer.
    """
    block_m, block_n, _, stages = tile
    if _uses_warp_groups(block_m, dtype, device):
        return dtype.size_bytes * width * (block_m + 2 * stages * block_n)
    pairs = max(stages - 1, 1)
    return dtype.size_bytes * (width * (block_m + 2 * pairs * block_n) + block_m * block_n)


def _cost(shape: _Shape, tile: tuple[int, int, int, int], splits: int, device: Device) -> float:
    """Microseconds by a coarse model: waves, time a key block, traffic of partial results."""
    block_m, block_n, warps, stages = tile
    programs = blocks(shape.rows, block_m) * shape.batch * shape.kv_heads * splits
    waves = blocks(programs, device.sm_count)
    steps = blocks(shape.key_blocks(block_n), splits)
    # Products per microsecond of one processor: warp-group instructions need 64 rows.
    rate = 3.0e6 if block_m >= 64 else 1.0e6
    rate *= (1.0 if stages > 1 else 0.7) * (1.0 if warps * 16 <= block_m else 0.8)
    flops = 4.0 * block_m * block_n * sum(shape.columns)
    cost = waves * (steps * (flops / rate + 0.3) + 2.0)
    if splits > 1:
        partial_bytes = 8.0 * splits * shape.batch * shape.heads * shape.queries * shape.width
        cost += 2.0 + partial_bytes / 4.0e6
    return cost


def _workspace(shape: _Shape, splits: int, scratch: View) -> tuple[View, View]:
    """Partial outputs and their statistics as float32 views of the workspace."""
    rows = splits * shape.batch * shape.kv_heads * shape.rows
    start = scratch.offset * scratch.dtype.size_bytes // 4

    def part(offset: int, count: int) -> View:
        return View(
            base=scratch.base,
            offset=start + offset,
            dtype=DType.F32,
            shape=(count,),
            strides=(1,),
        )

    return part(0, rows * shape.width), part(rows * shape.width, 2 * rows)


def _tile_call(
    attrs: AttentionAttributes,
    shape: _Shape,
    operands: tuple[View, ...],
    targets: _Targets,
    settings: dict[str, int],
    device: Device,
) -> KernelCall:
    """The one launch; its programs of a tile wait for each other where the keys are split."""
    q, k, v = operands[:3]
    second_k, second_v = _second(attrs, operands) or (None, None)
    out, partial, statistics, counters = targets
    arguments: dict[str, Argument] = {
        "q_pointer": q,
        "k_pointer": k,
        "v_pointer": v,
        "length_pointer": _length(attrs, operands),
        "second_k_pointer": second_k,
        "second_v_pointer": second_v,
        "query_length_pointer": _query_length(attrs, operands),
        "out_pointer": out,
        "partial_pointer": partial,
        "statistics_pointer": statistics,
        "counter_pointer": counters,
        "qk_scale": attrs.scale * LOG2_E,
    }
    main, rest = shape.columns
    constants: dict[str, Constant] = {
        "T": shape.queries,
        "S": shape.keys,
        "SECOND_S": shape.second_keys,
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "D": shape.width,
        "D_MAIN": main,
        "D_REST": rest,
        **axis_strides(q, "Q"),
        **axis_strides(k, "K"),
        **axis_strides(v, "V"),
        **axis_strides(second_k, "SECOND_K"),
        **axis_strides(second_v, "SECOND_V"),
        **axis_strides(out, "OUT"),
        "SPLITS": settings["splits"],
        "COMBINED_ROWS": power_of_two(blocks(settings["block_m"], settings["splits"])),
        "D_BLOCK": power_of_two(shape.width),
        "PHASE": "both",
        "BLOCK_M": settings["block_m"],
        "BLOCK_N": settings["block_n"],
        "PRECISION": "ieee" if shape.dtype is DType.F32 else "tf32",
    }
    grid = (
        blocks(shape.rows, settings["block_m"]),
        shape.batch * shape.kv_heads,
        settings["splits"],
    )
    return kernel_call("attention:attention_tile", arguments, constants, grid, settings, device)
