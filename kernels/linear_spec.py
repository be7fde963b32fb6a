"""The linear family: linear, split_linear, gated_linear.

The kernels are in `linear.py` and `linear_few_rows.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from policyc.compiler.ir.attributes import (
    GatedLinearAttributes,
    LinearAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.types import DType, TensorType
from policyc.kernels.layout import (
    Constant,
    LayoutError,
    Rows,
    are_weights,
    blocks,
    kernel_call,
    leading_rows,
    power_of_two,
)
from policyc.kernels.linear_cost import expected_us
from policyc.kernels.linear_tiles import (
    BULK_PREFETCH_BYTES,
    MAP_ALIGNMENT_BYTES,
    PREFETCH_REQUESTS,
    Shape,
    Tile,
    rejection,
    tile_of,
    tiles_for,
)
from policyc.kernels.spec import (
    Argument,
    Candidate,
    Descriptor,
    Device,
    KernelCall,
    Parameters,
    Problem,
    View,
    WithoutWorkspace,
)

_LINE_COLUMNS = 64
"""Columns of bf16 weights in a line of 128 bytes."""

_ROW_CLASSES = (16, 32, 64, 128, 256, 512, 768, 1024)


class LinearFamily(WithoutWorkspace):
    """Matrix products with their epilogues."""

    ops = ("linear", "split_linear", "gated_linear")

    def problem(self, node: Node, operands: tuple[TensorType, ...]) -> Problem:
        """Products with and without `length` are one problem: their parameters serve both."""
        shape = _shape(node, operands)
        words = [node.op, f"m={shape.m}", f"n={shape.result_columns}", f"k={shape.k}"]
        words.append(shape.dtype.value)
        if shape.splits > 1:
            words.append(f"splits={shape.splits}")
        if _activation(node) != "none":
            words.append(_activation(node))
        return Problem(op=node.op, key=" ".join(words))

    def candidates(
        self, node: Node, operands: tuple[TensorType, ...], device: Device
    ) -> tuple[Candidate, ...]:
        shape = _shape(node, operands)
        return tuple(
            Candidate(
                parameters=tile.parameters,
                cost=round(expected_us(shape, tile, device), 3),
                rejected=rejection(shape, tile, device),
            )
            for tile in tiles_for(shape)
        )

    def calls(
        self,
        node: Node,
        operands: tuple[View, ...],
        results: tuple[View, ...],
        scratch: View | None,
        parameters: Parameters,
        device: Device,
    ) -> tuple[KernelCall, ...]:
        types = tuple(TensorType(view.dtype, view.shape) for view in operands)
        shape = replace(_shape(node, types), m=_row_count(node))
        launch = _Launch(
            shape=shape,
            tile=tile_of(parameters),
            x=operands[0],
            rows=leading_rows(operands[0], "x"),
            w=_plain_weight(operands[1]),
            out=results[0],
            bias=operands[2] if _has_bias(node) else None,
            length=_lengths(node, operands, shape.m),
            activation=_activation(node),
        )
        if not launch.out.is_contiguous:
            raise LayoutError(
                f"{node.op}: result {launch.out.base} has shape {launch.out.shape} with strides "
                f"{launch.out.strides}, expected a contiguous one. Give it a buffer of its own."
            )
        if launch.tile.summed:
            return (_summed_call(launch, device),)
        if launch.tile.resident:
            return (_resident_call(launch, device),)
        return (
            _mapped_call(launch, device) if launch.tile.maps else _strided_call(launch, device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """Everything about one call but the device."""

    shape: Shape
    tile: Tile
    x: View
    rows: Rows
    w: View
    out: View
    bias: View | None
    length: View | None
    activation: str

    @property
    def sizes(self) -> dict[str, Constant]:
        shape = self.shape
        groups = self.length.shape[0] if self.length is not None else 0
        return {"M": shape.m, "N": shape.n, "K": shape.k, "GROUPS": groups}

    @property
    def stride_w(self) -> int:
        return self.w.strides[0] if self.shape.n > 1 else self.shape.k

    @property
    def prefetch_columns(self) -> int:
        if not self.tile.prefetch:
            return 0
        columns = max(power_of_two(self.shape.split_k), _LINE_COLUMNS)
        if self.tile.prefetch > 1:
            return min(columns, BULK_PREFETCH_BYTES // (2 * self.tile.block_n))
        return min(columns, PREFETCH_REQUESTS // self.tile.block_n * _LINE_COLUMNS)

    @property
    def prefetch_chunk(self) -> int:
        """Columns a request: a line, or in bulk one request a thread."""
        if self.tile.prefetch < 2:
            return _LINE_COLUMNS
        share = self.tile.block_n * self.prefetch_columns // (32 * self.tile.num_warps)
        columns = self.prefetch_columns
        whole = columns if columns <= self.shape.k else columns // 2  # a request ends within w
        return min(max(share, 2 * _LINE_COLUMNS), whole)


def row_class(rows: int) -> int:
    """Rows rounded up to the class in which one choice of parameters serves all."""
    for bound in _ROW_CLASSES:
        if rows <= bound:
            return bound
    return blocks(rows, 512) * 512


def _row_count(node: Node) -> int:
    result = node.outputs[0].type
    splits = node.attrs.splits if isinstance(node.attrs, SplitLinearAttributes) else 1
    return result.element_count // (result.shape[-1] * splits)


def _activation(node: Node) -> str:
    attrs = node.attrs
    return (
        attrs.activation if isinstance(attrs, LinearAttributes | GatedLinearAttributes) else "none"
    )


def _has_bias(node: Node) -> bool:
    return isinstance(node.attrs, LinearAttributes) and node.attrs.bias


def _lengths(node: Node, operands: tuple[View, ...], rows: int) -> View | None:
    """The numbers of needed rows, one a group of equally many rows."""
    attrs = node.attrs
    assert isinstance(attrs, LinearAttributes | SplitLinearAttributes | GatedLinearAttributes)
    if not attrs.length:
        return None
    length = operands[-1]
    if length.dtype is not DType.I32 or not length.is_contiguous or rows % length.shape[0]:
        raise LayoutError(
            f"{node.op}: length {length.base} is {length.dtype.value}{list(length.shape)} with "
            f"strides {length.strides}, expected contiguous i32[G] with G dividing {rows} rows."
        )
    return length


def _shape(node: Node, operands: tuple[TensorType, ...]) -> Shape:
    """The product with its rows rounded up to their class."""
    x, w = operands[:2]
    assert x.dtype in (DType.F32, DType.BF16), f"{node.op}: x is {x}, expected f32 or bf16"
    return Shape(
        m=row_class(_row_count(node)),
        n=w.shape[0],
        k=w.shape[1],
        dtype=x.dtype,
        result_dtype=node.outputs[0].type.dtype,
        splits=node.attrs.splits if isinstance(node.attrs, SplitLinearAttributes) else 1,
        gated=isinstance(node.attrs, GatedLinearAttributes),
    )


def _plain_weight(w: View) -> View:
    if w.shape[1] > 1 and w.strides[1] != 1:
        raise LayoutError(
            f"weight {w.base}: shape {w.shape} with strides {w.strides}, expected unit stride "
            f"along K. Materialise it as [N, K] first."
        )
    return w


def _matrix_map(view: View, rows: int, stride: int, block: tuple[int, int]) -> Descriptor:
    """A tensor map of `rows` rows of the view, `stride` elements apart."""
    size = view.dtype.size_bytes
    columns = view.shape[-1]
    step = stride if rows > 1 else columns
    if view.offset * size % MAP_ALIGNMENT_BYTES or step * size % MAP_ALIGNMENT_BYTES:
        raise LayoutError(
            f"{view.base}: a tensor map needs base and row stride at multiples of "
            f"{MAP_ALIGNMENT_BYTES} bytes, got offset {view.offset * size} and stride "
            f"{step * size}. Copy it first, or choose parameters with maps=0."
        )
    plain = replace(view, shape=(rows, columns), strides=(step, 1))
    return Descriptor(view=plain, block=block)


def _weight_map(launch: _Launch, width: int) -> Descriptor:
    return _matrix_map(launch.w, launch.shape.n, launch.stride_w, (width, launch.tile.block_k))


def _row_map(launch: _Launch) -> Descriptor:
    rows, tile = launch.rows, launch.tile
    if rows.outer_stride:
        raise LayoutError(
            f"x of {launch.x.base}: rows of shape {launch.x.shape} with strides {launch.x.strides} "
            f"need two strides, a tensor map has one. Copy it first, or choose maps=0."
        )
    return _matrix_map(launch.x, launch.shape.m, rows.inner_stride, (tile.block_m, tile.block_k))


def _result_map(launch: _Launch) -> Descriptor:
    """The result as [splits, M, columns] for partial sums, else as [M, columns]."""
    shape, tile = launch.shape, launch.tile
    width = tile.block_n // 2 if shape.gated else tile.block_n
    columns = shape.result_columns
    flat = replace(launch.out, shape=(shape.m, columns), strides=(columns, 1))
    return _matrix_map(flat, shape.m, columns, (tile.block_m, width))


def _mapped_call(launch: _Launch, device: Device) -> KernelCall:
    shape, tile = launch.shape, launch.tile
    arguments: dict[str, Argument] = {
        "x_map": _row_map(launch),
        "w_map": _weight_map(launch, tile.block_n),
        "side_map": _weight_map(launch, tile.side_n) if tile.side_n else None,
        "out": _result_map(launch) if tile.store_map else launch.out,
    }
    tiles = blocks(shape.m, tile.block_m) * blocks(shape.n, tile.width)
    blocking = _blocking(tile, side=True)
    ending = {**_ending(launch), "STORE_MAP": bool(tile.store_map)}
    if tile.persistent:
        programs = min(tile.persistent * device.sm_count, tiles)
        arguments |= {"bias": launch.bias, "length": launch.length}
        constants = {**launch.sizes, "PROGRAMS": programs, **blocking, **ending}
        return _call(
            "linear:persistent_linear", arguments, constants, (programs, 1, 1), tile, device
        )
    arguments["w"] = launch.w if tile.prefetch else None
    arguments |= {"bias": launch.bias, "length": launch.length}
    strides: dict[str, Constant] = {"STRIDE_W": launch.stride_w, "SPLIT_K": shape.split_k}
    constants = {**launch.sizes, **strides, **blocking, **ending, **_prefetching(launch)}
    return _call(
        "linear:mapped_linear", arguments, constants, (tiles, shape.splits, 1), tile, device
    )


def _resident_call(launch: _Launch, device: Device) -> KernelCall:
    shape, tile = launch.shape, launch.tile
    _require_weight(launch)
    arguments: dict[str, Argument] = {
        "x_map": _row_map(launch),
        "w_map": _weight_map(launch, tile.block_n),
        "out": launch.out,
        "bias": launch.bias,
        "length": launch.length,
    }
    constants = {
        **launch.sizes,
        "STEPS": shape.split_k // tile.block_k,
        **_blocking(tile, side=False),
        **_ending(launch),
    }
    tiles = blocks(shape.m, tile.block_m) * blocks(shape.n, tile.block_n)
    return _call(
        "linear_few_rows:resident_linear",
        arguments,
        constants,
        (tiles, shape.splits, 1),
        tile,
        device,
    )


def _pointers(launch: _Launch) -> dict[str, Argument]:
    return {
        "x": launch.x,
        "w": launch.w,
        "out": launch.out,
        "bias": launch.bias,
        "length": launch.length,
    }


def _strides(launch: _Launch) -> dict[str, Constant]:
    return {
        "INNER_M": launch.rows.inner,
        "STRIDE_OUTER": launch.rows.outer_stride,
        "STRIDE_X": launch.rows.inner_stride,
        "STRIDE_W": launch.stride_w,
    }


def _summed_call(launch: _Launch, device: Device) -> KernelCall:
    shape, tile = launch.shape, launch.tile
    constants: dict[str, Constant] = {
        **launch.sizes,
        **_strides(launch),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "ACTIVATION": launch.activation,
        "WEIGHTS_FIRST": are_weights((launch.w,)),
    }
    grid = (blocks(shape.m, tile.block_m), blocks(shape.n, tile.block_n), 1)
    return _call("linear_few_rows:summed_linear", _pointers(launch), constants, grid, tile, device)


def _strided_call(launch: _Launch, device: Device) -> KernelCall:
    shape, tile = launch.shape, launch.tile
    constants: dict[str, Constant] = {
        **launch.sizes,
        **_strides(launch),
        "SPLIT_K": shape.split_k,
        **_blocking(tile, side=False),
        **_ending(launch),
        **_prefetching(launch),
    }
    tiles = blocks(shape.m, tile.block_m) * blocks(shape.n, tile.block_n)
    grid = (tiles, shape.splits, 1)
    return _call("linear:strided_linear", _pointers(launch), constants, grid, tile, device)


def _ending(launch: _Launch) -> dict[str, Constant]:
    return {"ACTIVATION": launch.activation, "GATED": launch.shape.gated}


def _prefetching(launch: _Launch) -> dict[str, Constant]:
    return {"PREFETCH": launch.prefetch_columns, "CHUNK": launch.prefetch_chunk}


def _require_weight(launch: _Launch) -> None:
    if not are_weights((launch.w,)):
        raise LayoutError(
            f"w of {launch.w.base} is computed by the plan, but parameters with resident=1 read it "
            "before they wait for its launch. Choose parameters with resident=0."
        )


def _blocking(tile: Tile, *, side: bool) -> dict[str, Constant]:
    widths: dict[str, Constant] = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    if side:
        widths["SIDE_N"] = tile.side_n
    return {**widths, "BLOCK_K": tile.block_k, "GROUP_M": tile.group_m}


def _call(
    function: str,
    arguments: dict[str, Argument],
    constants: dict[str, Constant],
    grid: tuple[int, int, int],
    tile: Tile,
    device: Device,
) -> KernelCall:
    launch = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return kernel_call(function, arguments, constants, grid, launch, device)
