"""The gather family: embedding, compaction by a mask, counting, patches, and copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from policyc.compiler.ir.attributes import AxisAttributes, EmbeddingAttributes, PatchifyAttributes
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.types import DType, TensorType
from policyc.kernels.copy_layout import copy_constants
from policyc.kernels.layout import (
    Constant,
    as_bytes,
    blocks,
    kernel_call,
    leading_rows,
    parameters,
    power_of_two,
    require_contiguous,
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
    WithoutWorkspace,
)

MAX_BLOCK = 32768
"""Most values of one row or mask that a program holds at a time."""

_WARPS = {
    "embedding": (4, 2, 1, 8),
    "compact_rows": (4, 8, 2),
    "count_true": (4, 8),
    "patchify": (4, 2, 8),
    "copy": (4, 8, 2, 1),
    "cast": (4, 8, 2, 1),
    "concat": (4, 8, 2, 1),
}
"""Numbers of warps worth trying, most likely first."""


class GatherFamily(WithoutWorkspace):
    """Memory-bound kernels whose only parameter is the number of warps."""

    ops = tuple(_WARPS)

    def problem(self, node: Node, operands: tuple[TensorType, ...]) -> Problem:
        shapes = " ".join(map(str, operands))
        result = node.output.type
        if node.op == "embedding":
            # How many rows the table has does not matter.
            table = operands[1]
            shapes = f"{operands[0]} {table.dtype.value}[..,{table.shape[1]}]"
        return Problem(op=node.op, key=f"{node.op} {shapes}->{result}")

    def candidates(
        self, node: Node, operands: tuple[TensorType, ...], device: Device
    ) -> tuple[Candidate, ...]:
        widest = _widest_block(node, operands)
        rejected = ""
        if widest > MAX_BLOCK:
            rejected = f"{widest} values in one program, at most {MAX_BLOCK} fit in registers"
        return tuple(
            Candidate(
                parameters=parameters(num_warps=warps),
                cost=float(rank),
                rejected=rejected or _too_few_warps(widest, warps),
            )
            for rank, warps in enumerate((*_WARPS[node.op], 32))
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
        settings = dict(parameters)
        if node.op == "concat":
            pairs = _concat_pairs(node, operands, results[0])
            return tuple(copy_call(source, target, settings, device) for source, target in pairs)
        return (_CALLS[node.op](node, operands, results[0], settings, device),)


def _widest_block(node: Node, operands: tuple[TensorType, ...]) -> int:
    """Values that a program holds in one block; copies and embeddings choose their own block."""
    if node.op == "patchify":
        return power_of_two(node.output.type.shape[-1])
    if node.op == "count_true":
        return power_of_two(operands[0].shape[-1])
    if node.op == "compact_rows":
        return power_of_two(max(operands[0].shape[1:]))
    return 1


def _too_few_warps(widest: int, warps: int) -> str:
    values = widest // (32 * warps)
    return f"{values} values a thread, at most 64 fit in registers" if values > 64 else ""


def _embedding_call(
    node: Node, operands: tuple[View, ...], out: View, settings: dict[str, int], device: Device
) -> KernelCall:
    attrs = node.attrs
    assert isinstance(attrs, EmbeddingAttributes), f"embedding has {type(attrs).__name__}"
    ids, table = operands
    require_unit_stride(table, "embedding table")
    require_contiguous(out, "embedding result")
    # A trailing axis of one column makes every id a row of its own.
    columns = replace(ids, shape=(*ids.shape, 1), strides=(*ids.strides, 1))
    rows, width = leading_rows(columns, "ids"), table.shape[1]
    block = min(power_of_two(width), 256 * settings["num_warps"])
    constants: dict[str, Constant] = {
        "ROWS": rows.count,
        "VOCABULARY": table.shape[0],
        "D": width,
        "TABLE_STRIDE": table.strides[0],
        **rows.constants("IDS"),
        "BLOCK": block,
    }
    arguments: dict[str, Argument] = {
        "ids_pointer": ids,
        "table_pointer": table,
        "out_pointer": out,
        "scale": float(attrs.scale),
    }
    grid = (rows.count, blocks(width, block), 1)
    return kernel_call("gather:embed_rows", arguments, constants, grid, settings, device)


def _compact_call(
    node: Node, operands: tuple[View, ...], out: View, settings: dict[str, int], device: Device
) -> KernelCall:
    x, mask = operands
    require_unit_stride(x, "compact_rows operand")
    require_contiguous(out, "compact_rows result")
    batch, rows, width = x.shape
    constants: dict[str, Constant] = {
        "S": rows,
        "D": width,
        "X_BATCH": x.strides[0],
        "X_STRIDE": x.strides[1],
        "MASK_BATCH": mask.strides[0],
        "MASK_STRIDE": mask.strides[1],
        "S_BLOCK": power_of_two(rows),
        "BLOCK": power_of_two(width),
    }
    arguments: dict[str, Argument] = {
        "x_pointer": x,
        "mask_pointer": as_bytes(mask),
        "out_pointer": out,
    }
    grid = (rows, batch, 1)
    return kernel_call("gather:compact_masked", arguments, constants, grid, settings, device)


def _count_call(
    node: Node, operands: tuple[View, ...], out: View, settings: dict[str, int], device: Device
) -> KernelCall:
    mask = operands[0]
    require_contiguous(out, "count_true result")
    constants: dict[str, Constant] = {
        "S": mask.shape[1],
        "MASK_BATCH": mask.strides[0],
        "MASK_STRIDE": mask.strides[1],
        "S_BLOCK": power_of_two(mask.shape[1]),
    }
    arguments: dict[str, Argument] = {"mask_pointer": as_bytes(mask), "out_pointer": out}
    grid = (mask.shape[0], 1, 1)
    return kernel_call("gather:count_valid", arguments, constants, grid, settings, device)


def _patchify_call(
    node: Node, operands: tuple[View, ...], out: View, settings: dict[str, int], device: Device
) -> KernelCall:
    attrs, images = node.attrs, operands[0]
    assert isinstance(attrs, PatchifyAttributes), f"patchify has {type(attrs).__name__}"
    require_contiguous(out, "patchify result")
    batch, cameras, channels, _, width = images.shape
    strides = ("BATCH_STRIDE", "CAMERA_STRIDE", "CHANNEL_STRIDE", "ROW_STRIDE", "COLUMN_STRIDE")
    constants: dict[str, Constant] = {
        "CAMERAS": cameras,
        "CHANNELS": channels,
        "PATCHES_X": width // attrs.patch,
        "PATCHES": out.shape[2],
        "PATCH": attrs.patch,
        "COLUMNS": attrs.columns,
        **dict(zip(strides, images.strides, strict=True)),
        "BLOCK": power_of_two(attrs.columns),
    }
    arguments: dict[str, Argument] = {"images_pointer": images, "out_pointer": out}
    grid = (out.shape[2], batch * cameras, 1)
    return kernel_call("gather:extract_patches", arguments, constants, grid, settings, device)


def copy_call(source: View, target: View, settings: dict[str, int], device: Device) -> KernelCall:
    """Copy `source` to `target` of equal shape, converting the element type."""
    constants, grid = copy_constants(source, target, settings["num_warps"])
    # Booleans are bytes of 0 or 1: the same type needs no test, any other becomes `!= 0`.
    to_bool = target.dtype is DType.BOOL and source.dtype is not DType.BOOL
    return kernel_call(
        "gather:copy_strided",
        {"x_pointer": as_bytes(source), "out_pointer": as_bytes(target)},
        {**constants, "TO_BOOL": to_bool},
        grid,
        settings,
        device,
    )


def _copy_call(
    node: Node, operands: tuple[View, ...], out: View, settings: dict[str, int], device: Device
) -> KernelCall:
    return copy_call(operands[0], out, settings, device)


def _concat_pairs(
    node: Node, operands: tuple[View, ...], out: View
) -> tuple[tuple[View, View], ...]:
    """Each operand with its window on the result."""
    assert isinstance(node.attrs, AxisAttributes), f"concat has {type(node.attrs).__name__}"
    axis, start, pairs = node.attrs.axis, 0, []
    for operand in operands:
        offset = out.offset + start * out.strides[axis]
        pairs.append((operand, replace(out, offset=offset, shape=operand.shape)))
        start += operand.shape[axis]
    return tuple(pairs)


_Call = Callable[[Node, tuple[View, ...], View, dict[str, int], Device], KernelCall]

_CALLS: dict[str, _Call] = {
    "embedding": _embedding_call,
    "compact_rows": _compact_call,
    "count_true": _count_call,
    "patchify": _patchify_call,
    "copy": _copy_call,
    "cast": _copy_call,
}
