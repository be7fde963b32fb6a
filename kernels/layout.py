"""How views become the strides, blocks and arguments of a kernel call. Free of Triton."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from policyc.compiler.ir.errors import IrError
from policyc.compiler.ir.graph import is_weight
from policyc.compiler.ir.types import DType
from policyc.kernels.spec import Argument, Device, KernelCall, Parameters, View

Constant = int | bool | str | None


class LayoutError(IrError):
    """A view has strides that the kernel of its op cannot address; it needs a `copy` first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Leading axes of a view as `count` rows: row r starts at
    `(r // inner) * outer_stride + (r % inner) * inner_stride` elements."""

    count: int
    inner: int
    outer_stride: int
    inner_stride: int

    def constants(self, name: str) -> dict[str, Constant]:
        """The three constexpr parameters `<name>_INNER`, `<name>_OUTER_STRIDE`, `<name>_STRIDE`."""
        return {
            f"{name}_INNER": self.inner,
            f"{name}_OUTER_STRIDE": self.outer_stride,
            f"{name}_STRIDE": self.inner_stride,
        }


def collapse(axes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Axes (size, stride): those of size 1 dropped, those that continue each other merged."""
    merged: list[tuple[int, int]] = []
    for size, stride in axes:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def leading_rows(view: View, what: str) -> Rows:
    """The axes before the last one as rows; raises LayoutError unless two strides describe them.

    The last axis must have unit stride.
    """
    if view.shape[-1] != 1 and view.strides[-1] != 1:
        raise LayoutError(
            f"{what} of {view.base}: stride of the last axis is {view.strides[-1]}, expected 1; "
            f"strides {view.strides}. Copy it first."
        )
    axes = collapse(zip(view.shape[:-1], view.strides[:-1], strict=True))
    if len(axes) > 2:
        raise LayoutError(
            f"{what} of {view.base}: rows of shape {view.shape} with strides {view.strides} need "
            f"{len(axes)} strides, expected at most 2. Copy it first."
        )
    if not axes:
        return Rows(count=1, inner=1, outer_stride=0, inner_stride=0)
    if len(axes) == 1:
        count, stride = axes[0]
        return Rows(count=count, inner=count, outer_stride=0, inner_stride=stride)
    (outer, outer_stride), (inner, inner_stride) = axes
    count = outer * inner
    return Rows(count=count, inner=inner, outer_stride=outer_stride, inner_stride=inner_stride)


def require_unit_stride(view: View, what: str) -> None:
    """Raise LayoutError unless the last axis is contiguous."""
    if view.shape[-1] != 1 and view.strides[-1] != 1:
        raise LayoutError(
            f"{what} of {view.base}: stride of the last axis is {view.strides[-1]}, expected 1; "
            f"shape {view.shape}, strides {view.strides}. Copy it first."
        )


def require_contiguous(view: View, what: str) -> None:
    """Raise LayoutError unless the view is contiguous."""
    if not view.is_contiguous:
        raise LayoutError(
            f"{what} of {view.base}: strides {view.strides} of shape {view.shape}, "
            "expected a contiguous buffer."
        )


def require_lengths(length: View | None, batch: int, what: str) -> None:
    """Raise LayoutError unless an operand with needed rows is absent or has one number a sample."""
    if length is not None and (length.shape != (batch,) or not length.is_contiguous):
        raise LayoutError(
            f"length {length.base} of {what}: shape {length.shape}, strides {length.strides}, "
            f"expected a contiguous [{batch}]."
        )


def axis_strides(view: View | None, name: str) -> dict[str, Constant]:
    """Strides of [B, T, H, D] as `<name>_BATCH`, `_STRIDE`, `_HEAD`; 0 for an absent view."""
    batch, row, head = view.strides[:3] if view is not None else (0, 0, 0)
    return {f"{name}_BATCH": batch, f"{name}_STRIDE": row, f"{name}_HEAD": head}


def as_bytes(view: View) -> View:
    """The view with booleans as the bytes that hold them (0 or 1)."""
    return replace(view, dtype=DType.U8) if view.dtype is DType.BOOL else view


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << max(count - 1, 0).bit_length()


def blocks(count: int, block: int) -> int:
    """How many blocks cover `count` elements."""
    return -(-count // block)


def parameters(**values: int) -> Parameters:
    return tuple(sorted(values.items()))


def are_weights(views: Iterable[View]) -> bool:
    """Does every view look at a weight, so that a kernel may read it before it waits?"""
    return all(is_weight(view.base) for view in views)


def kernel_call(
    kernel: str,
    arguments: dict[str, Argument],
    constants: dict[str, Constant],
    grid: tuple[int, int, int],
    launch: dict[str, int],
    device: Device,
) -> KernelCall:
    """A call with `PDL` as its last constexpr; `launch` has num_warps and may have num_stages."""
    pdl = device.has_dependent_launch
    return KernelCall(
        kernel=kernel,
        arguments=tuple(arguments.items()),
        constants=(*constants.items(), ("PDL", pdl)),
        grid=grid,
        num_warps=launch["num_warps"],
        num_stages=launch.get("num_stages", 1),
        pdl=pdl,
    )
