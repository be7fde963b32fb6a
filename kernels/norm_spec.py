"""The norm family: rms_norm, layer_norm, add_norm."""

from __future__ import annotations

from typing import TypeVar

from policyc.compiler.ir.attributes import AddNormAttributes, NormAttributes
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.types import TensorType
from policyc.kernels.layout import (
    Constant,
    are_weights,
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

_T = TypeVar("_T")

MAX_WIDTH = 32768
"""Widest row: it is held in registers, 32 values a thread with 32 warps."""

VALUES_PER_THREAD = 64
"""With more float32 values a thread, a tile and its addresses no longer fit in registers."""

_SHAPES = ((1, 4), (1, 8), (1, 2), (1, 1), (2, 4), (4, 4), (4, 1), (1, 16), (1, 32))


class NormFamily(WithoutWorkspace):
    """One program a row or group of rows; vectors that are weights are read before the wait."""

    ops = ("rms_norm", "layer_norm", "add_norm")

    def problem(self, node: Node, operands: tuple[TensorType, ...]) -> Problem:
        rows, width = _rows_and_width(node)
        results = "/".join(value.type.dtype.value for value in node.outputs)
        attrs = node.attrs
        form = (
            f" {attrs.kind} splits={attrs.splits}" if isinstance(attrs, AddNormAttributes) else ""
        )
        count = f"<={rows}" if _attributes(node).length else str(rows)
        vectors = len(_vector_operands(node, operands))
        key = f"{node.op}{form} m={count} d={width} vectors={vectors} {operands[0].dtype.value}"
        return Problem(op=node.op, key=f"{key}->{results}")

    def candidates(
        self, node: Node, operands: tuple[TensorType, ...], device: Device
    ) -> tuple[Candidate, ...]:
        rows, width = _rows_and_width(node)
        return tuple(
            _candidate(rows, width, rows_per_program, warps, device)
            for rows_per_program, warps in _SHAPES
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
        attrs = _attributes(node)
        if isinstance(attrs, AddNormAttributes):
            return (_add_norm_call(node, attrs, operands, results, parameters, device),)
        return (_norm_call(node, operands, results[0], parameters, device),)


def _attributes(node: Node) -> NormAttributes | AddNormAttributes:
    assert isinstance(node.attrs, NormAttributes | AddNormAttributes), f"{node.op}: {node.attrs}"
    return node.attrs


def _vector_operands(node: Node, operands: tuple[_T, ...]) -> tuple[_T, ...]:
    """The operands between the tensors and the length."""
    attrs = _attributes(node)
    first = 2 if isinstance(attrs, AddNormAttributes) else 1
    return operands[first : len(operands) - attrs.length]


def _length(
    node: Node, operands: tuple[View, ...], rows: int
) -> tuple[View | None, dict[str, Constant]]:
    """The operand with the needed rows of each group, and how many rows a group has."""
    if not _attributes(node).length:
        return None, {"GROUP_ROWS": rows}
    length = operands[-1]
    require_contiguous(length, "length")
    return length, {"GROUP_ROWS": rows // length.shape[0]}


def _rows_and_width(node: Node) -> tuple[int, int]:
    result = node.outputs[0].type
    width = result.shape[-1]
    return result.element_count // width, width


def _candidate(
    rows: int, width: int, rows_per_program: int, warps: int, device: Device
) -> Candidate:
    """Cost counts values that one thread handles in sequence: waves times its own tile."""
    values = rows_per_program * power_of_two(width) / (32 * warps)
    # A processor holds about 16 programs of 4 warps at a time.
    waves = blocks(blocks(rows, rows_per_program), device.sm_count * max(64 // warps, 1))
    rejected = ""
    if width > MAX_WIDTH:
        rejected = f"row of {width} values, at most {MAX_WIDTH} fit in registers"
    elif values > VALUES_PER_THREAD:
        rejected = f"{values:.0f} values a thread, at most {VALUES_PER_THREAD} fit in registers"
    elif rows_per_program >= 2 * rows:
        rejected = f"{rows_per_program} rows a program, the problem has {rows}"
    # Eight values a thread hide a load's latency; reducing over more warps costs a few more steps.
    cost = waves * (max(values, 8.0) + 2.0 * warps)
    return Candidate(
        parameters=parameters(num_warps=warps, rows_per_program=rows_per_program),
        cost=cost,
        rejected=rejected,
    )


def _vectors(
    names: tuple[str, ...], flags: tuple[bool, ...], views: tuple[View, ...]
) -> dict[str, View | None]:
    """Optional vectors by argument name, None where the flag is off."""
    rest = iter(views)
    chosen = {
        f"{name}_pointer": next(rest) if flag else None
        for name, flag in zip(names, flags, strict=True)
    }
    for name, view in chosen.items():
        if view is not None:
            require_unit_stride(view, name)
    return chosen


def _norm_call(
    node: Node,
    operands: tuple[View, ...],
    result: View,
    choice: Parameters,
    device: Device,
) -> KernelCall:
    x, settings, attrs = operands[0], dict(choice), _attributes(node)
    given = _vector_operands(node, operands)
    vectors = _vectors(("scale", "shift"), (attrs.scale, attrs.shift), given)
    x_rows, y_rows = leading_rows(x, "x"), leading_rows(result, "result")
    length, group = _length(node, operands, x_rows.count)
    arguments: dict[str, Argument] = {
        "x_pointer": x,
        **vectors,
        "length_pointer": length,
        "y_pointer": result,
        "eps": attrs.eps,
    }
    constants: dict[str, Constant] = {
        "ROWS": x_rows.count,
        **group,
        "D": x.shape[-1],
        "LAYER": node.op == "layer_norm",
        **x_rows.constants("X"),
        **y_rows.constants("Y"),
        **_tile(x.shape[-1], settings),
        "VECTORS_EARLY": are_weights(given),
    }
    grid = (blocks(x_rows.count, settings["rows_per_program"]), 1, 1)
    return kernel_call("norm:norm_rows", arguments, constants, grid, settings, device)


def _add_norm_call(
    node: Node,
    attrs: AddNormAttributes,
    operands: tuple[View, ...],
    results: tuple[View, ...],
    choice: Parameters,
    device: Device,
) -> KernelCall:
    (branch, residual), settings = operands[:2], dict(choice)
    flags = (attrs.bias, attrs.gate, attrs.scale, attrs.shift)
    given = _vector_operands(node, operands)
    vectors = _vectors(("bias", "gate", "scale", "shift"), flags, given)
    total, normed = results
    split_stride = branch.strides[0] if attrs.splits else 0
    part = _first_part(branch) if attrs.splits else branch
    residual_rows = leading_rows(residual, "residual")
    rows, width = leading_rows(part, "branch"), total.shape[-1]
    length, group = _length(node, operands, rows.count)
    arguments: dict[str, Argument] = {
        "branch_pointer": branch,
        "residual_pointer": residual,
        **vectors,
        "length_pointer": length,
        "sum_pointer": total,
        "normed_pointer": normed,
        "eps": attrs.eps,
    }
    constants: dict[str, Constant] = {
        "ROWS": rows.count,
        **group,
        "D": width,
        "LAYER": attrs.kind == "layer",
        "SPLITS": max(attrs.splits, 1),
        "SPLIT_STRIDE": split_stride,
        "RESIDUAL_ROWS": residual_rows.count,
        **rows.constants("BRANCH"),
        **residual_rows.constants("RESIDUAL"),
        **leading_rows(total, "sum").constants("SUM"),
        **leading_rows(normed, "normed").constants("NORMED"),
        **_tile(width, settings),
        "VECTORS_EARLY": are_weights(given),
    }
    grid = (blocks(rows.count, settings["rows_per_program"]), 1, 1)
    return kernel_call("norm:add_norm_rows", arguments, constants, grid, settings, device)


def _first_part(branch: View) -> View:
    """The first of the partial sums stacked on the leading axis."""
    return View(
        base=branch.base,
        offset=branch.offset,
        dtype=branch.dtype,
        shape=branch.shape[1:],
        strides=branch.strides[1:],
    )


def _tile(width: int, settings: dict[str, int]) -> dict[str, Constant]:
    return {
        "ROWS_PER_PROGRAM": settings["rows_per_program"],
        "BLOCK": power_of_two(width),
    }
