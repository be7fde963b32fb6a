"""How calls of an exported program become rows of the op table: one entry a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node as FxNode

from policyc.compiler.ir.attributes import (
    AttentionAttributes,
    AxisAttributes,
    CastAttributes,
    EmbeddingAttributes,
    LinearAttributes,
    NoAttributes,
    NormAttributes,
    PatchifyAttributes,
    PermuteAttributes,
    RopeAttributes,
    ScalarAttributes,
    ShapeAttributes,
    SliceAttributes,
)
from policyc.compiler.ir.types import TensorType
from policyc.frontends.errors import FrontendError

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A node to be: the op, its operands in the exported program, and its attributes."""

    op: str
    operands: tuple[FxNode, ...]
    attributes: object


Importer = Callable[[Arguments, Keywords, TensorType], Call | FxNode]
"""Arguments, keywords and result type of a call -> the node to make, or the operand it is equal
to."""


def _present(*operands: FxNode | None) -> tuple[FxNode, ...]:
    return tuple(operand for operand in operands if operand is not None)


def _unary(op: str) -> Importer:
    return lambda args, _, __: Call(op=op, operands=(args[0],), attributes=NoAttributes())


def _binary(op: str, scalar: str, negate: bool = False) -> Importer:
    """A pointwise op whose second operand may be a number; `negate` turns x - c into x + (-c)."""

    def build(args: Arguments, keywords: Keywords, _: TensorType) -> Call:
        if keywords:
            raise FrontendError(f"{op} with {sorted(keywords)}: write the factor as a product")
        first, second = args
        if isinstance(second, FxNode):
            return Call(op=op, operands=(first, second), attributes=NoAttributes())
        value = -second if negate else second
        return Call(op=scalar, operands=(first,), attributes=ScalarAttributes(value=value))

    return build


def _linear(args: Arguments, _: Keywords, result: TensorType) -> Call:
    bias = args[2] if len(args) > 2 else None
    attributes = LinearAttributes(bias=bias is not None, dtype=result.dtype)
    return Call(op="linear", operands=_present(args[0], args[1], bias), attributes=attributes)


def _layer_norm(args: Arguments, _: Keywords, result: TensorType) -> Call:
    defaults = (None, None, None, None, 1e-5)
    x, _, scale, shift, eps = (*args, *defaults[len(args) :])[:5]
    attributes = NormAttributes(
        eps=eps, scale=scale is not None, shift=shift is not None, dtype=result.dtype
    )
    return Call(op="layer_norm", operands=_present(x, scale, shift), attributes=attributes)


def _rms_norm(args: Arguments, _: Keywords, result: TensorType) -> Call:
    scale = args[2] if len(args) > 2 else None
    eps = args[3] if len(args) > 3 else None
    if eps is None:
        raise FrontendError("rms_norm without eps: its default depends on the element type")
    attributes = NormAttributes(eps=eps, scale=scale is not None, dtype=result.dtype)
    return Call(op="rms_norm", operands=_present(args[0], scale), attributes=attributes)


def _gelu(args: Arguments, keywords: Keywords, _: TensorType) -> Call:
    approximate = keywords.get("approximate", "none")
    if approximate != "tanh":
        raise FrontendError(f"gelu with approximate={approximate!r}: only 'tanh' has a row")
    return Call(op="gelu_tanh", operands=(args[0],), attributes=NoAttributes())


def _reshape(args: Arguments, _: Keywords, result: TensorType) -> Call:
    attributes = ShapeAttributes(shape=result.shape)
    return Call(op="reshape", operands=(args[0],), attributes=attributes)


def _expand(args: Arguments, _: Keywords, result: TensorType) -> Call:
    attributes = ShapeAttributes(shape=result.shape)
    return Call(op="expand", operands=(args[0],), attributes=attributes)


def _slice(args: Arguments, _: Keywords, result: TensorType) -> Call | FxNode:
    x, axis, start, stop, step = (*args, *(0, None, None, 1)[len(args) - 1 :])[:5]
    if step != 1:
        raise FrontendError(f"slice with step {step}: only 1 has a row")
    size = x.meta["val"].shape[axis]
    first = min(max(start or 0, 0) if (start or 0) >= 0 else size + start, size)
    if result.shape[axis] == size:
        return x  # type: ignore[no-any-return]
    axis = axis % result.rank
    attributes = SliceAttributes(axis=axis, start=first, stop=first + result.shape[axis])
    return Call(op="slice", operands=(x,), attributes=attributes)


def _concat(args: Arguments, _: Keywords, result: TensorType) -> Call:
    axis = (args[1] if len(args) > 1 else 0) % result.rank
    return Call(op="concat", operands=tuple(args[0]), attributes=AxisAttributes(axis=axis))


def _permute(args: Arguments, _: Keywords, result: TensorType) -> Call:
    order = tuple(axis % result.rank for axis in args[1])
    return Call(op="permute", operands=(args[0],), attributes=PermuteAttributes(order=order))


def _transpose(args: Arguments, _: Keywords, result: TensorType) -> Call:
    order = list(range(result.rank))
    a, b = args[1] % result.rank, args[2] % result.rank
    order[a], order[b] = order[b], order[a]
    return Call(op="permute", operands=(args[0],), attributes=PermuteAttributes(order=tuple(order)))


def _cast(args: Arguments, _: Keywords, result: TensorType) -> Call | FxNode:
    if args[0].meta["val"].dtype == _torch_dtype(args):
        return args[0]  # type: ignore[no-any-return]
    return Call(op="cast", operands=(args[0],), attributes=CastAttributes(dtype=result.dtype))


def _torch_dtype(args: Arguments) -> object:
    return args[1] if len(args) > 1 else None


def _embedding(args: Arguments, _: Keywords, result: TensorType) -> Call:
    attributes = EmbeddingAttributes(dtype=result.dtype)
    return Call(op="embedding", operands=(args[1], args[0]), attributes=attributes)


def _attention(args: Arguments, _: Keywords, result: TensorType) -> Call:
    q, k, v, scale, length, second_k, second_v = (*args, None, None, None)[:7]
    attributes = AttentionAttributes(
        scale=scale, length=length is not None, second=second_k is not None, dtype=result.dtype
    )
    operands = _present(q, k, v, length, second_k, second_v)
    return Call(op="attention", operands=operands, attributes=attributes)


def _rope(args: Arguments, _: Keywords, result: TensorType) -> Call:
    start = args[3] if len(args) > 3 else None
    attributes = RopeAttributes(start=start is not None, dtype=result.dtype)
    return Call(op="rope", operands=_present(*args[:3], start), attributes=attributes)


def _patchify(args: Arguments, _: Keywords, result: TensorType) -> Call:
    attributes = PatchifyAttributes(patch=args[1], columns=result.shape[-1], dtype=result.dtype)
    return Call(op="patchify", operands=(args[0],), attributes=attributes)


def _rows(op: str) -> Importer:
    return lambda args, _, __: Call(op=op, operands=tuple(args), attributes=NoAttributes())


IMPORTERS: dict[str, Importer] = {
    "aten.linear.default": _linear,
    "aten.layer_norm.default": _layer_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten.gelu.default": _gelu,
    **{f"aten.{op}.default": _unary(op) for op in ("silu", "neg", "exp", "sin", "cos", "sqrt")},
    **{f"aten.{op}.default": _unary(op) for op in ("rsqrt", "tanh", "sigmoid")},
    "aten.add.Tensor": _binary("add", "add_scalar"),
    "aten.sub.Tensor": _binary("sub", "add_scalar", negate=True),
    "aten.mul.Tensor": _binary("mul", "mul_scalar"),
    "aten.div.Tensor": _binary("div", "div_scalar"),
    "aten.reshape.default": _reshape,
    "aten.view.default": _reshape,
    "aten.unsqueeze.default": _reshape,
    "aten.flatten.using_ints": _reshape,
    "aten.expand.default": _expand,
    "aten.slice.Tensor": _slice,
    "aten.alias.default": lambda args, _, __: args[0],
    "aten.cat.default": _concat,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.to.dtype": _cast,
    "aten.embedding.default": _embedding,
    "policyc.attention.default": _attention,
    "policyc.rope.default": _rope,
    "policyc.patchify.default": _patchify,
    "policyc.compact_rows.default": _rows("compact_rows"),
    "policyc.scatter_rows.default": _rows("scatter_rows"),
    "policyc.count_true.default": _rows("count_true"),
    "policyc.table_row.default": _rows("table_row"),
}
