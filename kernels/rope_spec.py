"""The rope family: a program turns some heads of one row."""

from __future__ import annotations

from policyc.compiler.ir.attributes import RopeAttributes
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.types import TensorType
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
    WithoutWorkspace,
)

_SHAPES = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4), (16, 4), (16, 8))
"""heads_block, num_warps."""


class RopeFamily(WithoutWorkspace):
    """Rotary embedding; query and key heads that lie side by side are turned together."""

    ops = ("rope",)

    def problem(self, node: Node, operands: tuple[TensorType, ...]) -> Problem:
        batch, rows, heads, width = operands[0].shape
        types = f"{operands[0].dtype.value}->{node.output.type.dtype.value}"
        count = f"<={rows}" if _attributes(node).length else str(rows)
        return Problem(op="rope", key=f"rope b={batch} t={count} h={heads} d={width} {types}")

    def candidates(
        self, node: Node, operands: tuple[TensorType, ...], device: Device
    ) -> tuple[Candidate, ...]:
        batch, rows, heads, width = operands[0].shape
        return tuple(_candidate((batch * rows, heads, width), shape, device) for shape in _SHAPES)

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
        (x, cos, sin), out = operands[:3], results[0]
        for view in (x, cos, sin, out):
            require_unit_stride(view, "rope operand")
        length = operands[-1] if attrs.length else None
        require_lengths(length, x.shape[0], "rope")
        batch, rows, heads, width = x.shape
        arguments: dict[str, Argument] = {
            "x_pointer": x,
            "cos_pointer": cos,
            "sin_pointer": sin,
            "start_pointer": operands[3] if attrs.start else None,
            "length_pointer": length,
            "out_pointer": out,
        }
        constants: dict[str, Constant] = {
            "T": rows,
            "H": heads,
            "HALF": width // 2,
            "TABLE_ROWS": min(cos.shape[0], sin.shape[0]),
            **axis_strides(x, "X"),
            **axis_strides(out, "OUT"),
            "COS_STRIDE": cos.strides[0],
            "SIN_STRIDE": sin.strides[0],
            "HEADS_BLOCK": settings["heads_block"],
            "HALF_BLOCK": power_of_two(width // 2),
        }
        grid = (rows, blocks(heads, settings["heads_block"]), batch)
        return (kernel_call("rope:rotate_heads", arguments, constants, grid, settings, device),)


def _attributes(node: Node) -> RopeAttributes:
    assert isinstance(node.attrs, RopeAttributes), f"rope has {type(node.attrs).__name__}"
    return node.attrs


def _candidate(sizes: tuple[int, int, int], shape: tuple[int, int], device: Device) -> Candidate:
    """Cost: waves of programs times what one thread does in sequence, idle heads included."""
    (rows, heads, width), (heads_block, warps) = sizes, shape
    programs = rows * blocks(heads, heads_block)
    waves = blocks(programs, device.sm_count * max(64 // warps, 1))
    values = heads_block * power_of_two(width // 2) * 2 / (32 * warps)
    rejected = ""
    if values > 64:
        rejected = f"{values:.0f} values a thread, at most 64 fit in registers"
    elif heads_block >= 2 * heads:
        rejected = f"{heads_block} heads a program, the problem has {heads}"
    return Candidate(
        parameters=parameters(heads_block=heads_block, num_warps=warps),
        cost=waves * (max(values, 8.0) + 8.0),
        rejected=rejected,
    )
