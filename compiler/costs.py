"""What each node costs at least: operations, and bytes that must move.

Bytes count every operand and every result once, weights included. Operations count a multiply-add
as two, an instruction of a pointwise program as one; lengths that vary at run time count in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from policyc.compiler.ir.attributes import (
    AddNormAttributes,
    AttentionAttributes,
    NormAttributes,
    PointwiseAttributes,
)
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.types import DType, TensorType
from policyc.profiles.profile import Profile

Types = tuple[TensorType, ...]

_PEAK_NAMES = {DType.BF16: "bf16", DType.F32: "f32"}
_ROOT_MEAN_SQUARE, _LAYER = 4, 6
"""Operations an element of a norm without its affine terms: square, sum, scale; and the mean."""


class CostError(Exception):
    """An op without a cost rule, or a profile without the peak that a rule needs: our bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Operations, bytes, and the element type whose peak bounds the operations."""

    flops: int = 0
    bytes: int = 0
    dtype: DType = DType.F32

    def roof_us(self, profile: Profile) -> float:
        """The shortest time on a device, by the larger of its two limits."""
        return max(self.compute_us(profile), self.memory_us(profile))

    def compute_us(self, profile: Profile) -> float:
        """Time of the operations at the device's peak."""
        name = _PEAK_NAMES.get(self.dtype, "f32")
        if name not in profile.peak_flops:
            raise CostError(f"profile {profile.target}: no peak_flops.{name}; add it.")
        return self.flops / profile.peak_flops[name] * 1e6

    def memory_us(self, profile: Profile) -> float:
        """Time of the bytes at the device's bandwidth."""
        return self.bytes / profile.bandwidth_bytes_per_s * 1e6


def node_cost(node: Node, operands: Types) -> Cost:
    """Cost of a node with operands of these types.

    Raises:
        CostError: an op without a rule.
    """
    rule = RULES.get(node.op)
    if rule is None:
        raise CostError(f"op {node.op} has no rule in compiler/costs.py; known: {sorted(RULES)}.")
    return rule(node, operands)


def _results(node: Node) -> int:
    return sum(value.type.size_bytes for value in node.outputs)


def _traffic(node: Node, operands: Types) -> int:
    return sum(operand.size_bytes for operand in operands) + _results(node)


def _product(node: Node, operands: Types) -> Cost:
    """x [.., K] with w [N, K], however the sum over K is split."""
    x, w = operands[:2]
    rows = x.element_count // x.shape[-1]
    flops = 2 * rows * w.element_count
    return Cost(flops=flops, bytes=_traffic(node, operands), dtype=x.dtype)


def _attention(node: Node, operands: Types) -> Cost:
    """Two products a key; q [B, T, H, D], keys of both segments."""
    assert isinstance(node.attrs, AttentionAttributes), node.op
    q, keys = operands[0], operands[1].shape[1]
    if node.attrs.second:
        keys += operands[3 + node.attrs.length].shape[1]
    flops = 4 * q.element_count * keys
    return Cost(flops=flops, bytes=_traffic(node, operands), dtype=q.dtype)


def _norm(base: int) -> Callable[[Node, Types], Cost]:
    def rule(node: Node, operands: Types) -> Cost:
        assert isinstance(node.attrs, NormAttributes), node.op
        each = base + node.attrs.scale + node.attrs.shift
        flops = each * node.output.type.element_count
        return Cost(flops=flops, bytes=_traffic(node, operands))

    return rule


def _add_norm(node: Node, operands: Types) -> Cost:
    attrs = node.attrs
    assert isinstance(attrs, AddNormAttributes), node.op
    each = _LAYER if attrs.kind == "layer" else _ROOT_MEAN_SQUARE
    each += 1 + max(attrs.splits - 1, 0)
    each += attrs.bias + attrs.gate + attrs.scale + attrs.shift
    flops = each * node.outputs[0].type.element_count
    return Cost(flops=flops, bytes=_traffic(node, operands))


def _rope(node: Node, operands: Types) -> Cost:
    """Reads a row of both tables for each position, not the whole tables."""
    x, cos = operands[:2]
    tables = 2 * x.shape[0] * x.shape[1] * cos.shape[1] * cos.dtype.size_bytes
    lengths = sum(operand.size_bytes for operand in operands[3:])
    moved = x.size_bytes + _results(node) + tables + lengths
    return Cost(flops=3 * x.element_count, bytes=moved)


def _embedding(node: Node, operands: Types) -> Cost:
    """Reads a row of the table for each id, not the whole table."""
    ids, table = operands[:2]
    rows = ids.element_count * table.shape[1] * table.dtype.size_bytes
    return Cost(flops=node.output.type.element_count, bytes=ids.size_bytes + rows + _results(node))


def _pointwise(node: Node, operands: Types) -> Cost:
    """One operation an element and instruction; single ops have one."""
    attrs = node.attrs
    steps = len(attrs.program) if isinstance(attrs, PointwiseAttributes) else 1
    count = node.outputs[0].type.element_count
    return Cost(flops=steps * count, bytes=_traffic(node, operands))


def _move(node: Node, operands: Types) -> Cost:
    """No arithmetic."""
    return Cost(bytes=_traffic(node, operands))


def _copy(node: Node, operands: Types) -> Cost:
    """A view that strides cannot express: its elements are read and written once."""
    return Cost(bytes=2 * _results(node))


_SINGLE = ("neg", "exp", "sin", "cos", "sqrt", "rsqrt", "tanh", "sigmoid", "silu", "gelu_tanh")
_PAIR = ("add", "sub", "mul", "div", "add_scalar", "mul_scalar", "div_scalar", "rsub_scalar")
_MOVED = ("patchify", "compact_rows", "count_true", "concat")
_COPIED = ("copy", "reshape", "slice", "permute", "expand", "row")

RULES: Mapping[str, Callable[[Node, Types], Cost]] = {
    "linear": _product,
    "split_linear": _product,
    "gated_linear": _product,
    "attention": _attention,
    "rms_norm": _norm(_ROOT_MEAN_SQUARE),
    "layer_norm": _norm(_LAYER),
    "add_norm": _add_norm,
    "rope": _rope,
    "embedding": _embedding,
    "pointwise": _pointwise,
    **dict.fromkeys((*_SINGLE, *_PAIR, "cast"), _pointwise),
    **dict.fromkeys(_MOVED, _move),
    **dict.fromkeys(_COPIED, _copy),
}
"""The one table: op -> its rule. Every op that a kernel family serves has one."""
