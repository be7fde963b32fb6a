"""Attributes of the ops: one frozen dataclass an op, named after it.

`dtype` is the element type of the result; arithmetic inside an op is float32 (float64 where an
input is). A flag such as `bias` says whether that optional operand is among the inputs; operands
stand in the order of the flags.

`length` (`query_length` for attention) adds a last operand, i32 [G]: the rows of x fall into G
groups of equal size, and from each group only the first `length[g]` rows are needed. Others hold
anything afterwards,
also values that are not finite: whoever reads them must not let them act.
"""

from __future__ import annotations

from dataclasses import dataclass

from policyc.compiler.ir.types import DType

Scalar = int | float

ACTIVATIONS = ("none", "gelu_tanh", "silu")
NORM_KINDS = ("rms", "layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAttributes:
    """For ops that are fully described by their operands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttributes:
    """`act(x w^T + bias)`; operands x [.., K], w [N, K], bias [N], length."""

    activation: str = "none"
    bias: bool = False
    length: bool = False
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLinearAttributes:
    """`x w^T` as `splits` partial sums over ranges of K; operands x [.., K], w [N, K], length.

    The result is [splits, .., N].
    """

    splits: int
    length: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedLinearAttributes:
    """`act(x g^T) * (x u^T)`; operands x [.., K], w [2N, K] with rows g0, u0, g1, u1, ..,
    length."""

    activation: str
    length: bool = False
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True, kw_only=True)
class NormAttributes:
    """`n(x) * scale + shift`; operands x [.., D], scale [D] (or [1, D]), shift likewise, length."""

    eps: float
    scale: bool = False
    shift: bool = False
    length: bool = False
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNormAttributes:
    """`sum = residual + gate * (branch + bias)` and `normed = norm(sum) * scale + shift`.

    Operands: branch, residual, bias, gate, scale, shift, length. With `splits` > 0 the branch
        has a leading axis of
    partial sums, added in order. The residual may have fewer rows than the branch; they repeat.
    """

    kind: str
    eps: float
    splits: int = 0
    bias: bool = False
    gate: bool = False
    scale: bool = False
    shift: bool = False
    length: bool = False
    sum_dtype: DType = DType.F32
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeAttributes:
    """Rotary embedding, half-split pairs; operands x [B, T, H, D], cos [P, D/2], sin [P, D/2],
    start [B], length.

    Row t of sample b uses table row `start[b] + t`.
    """

    start: bool = False
    length: bool = False
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionAttributes:
    """Softmax attention; operands q [B, T, H, D], k, v [B, S, Hk, D], length i32 [B], k2, v2,
    query_length.

    Keys `j >= length[b]` of the first segment do not exist; the second segment, k2, v2 [B, S2,
    Hk, D], is seen whole. `query_length` i32 [B]: rows of q that are needed.
    """

    scale: float
    length: bool = False
    second: bool = False
    query_length: bool = False
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingAttributes:
    """`table[ids] * scale`; operands ids [B, T], table [V, D]."""

    scale: float = 1.0
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchifyAttributes:
    """Non-overlapping patches as rows; operand [B, C, 3, H, W], result [B, C, (H/p) * (W/p),
    columns].

    Columns are (channel, row, column) of the patch, then zeros.
    """

    patch: int
    columns: int
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisAttributes:
    """For ops along one axis (concat, stack)."""

    axis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeAttributes:
    """Target shape (reshape, expand)."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceAttributes:
    """`x[start:stop]` along `axis`."""

    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PermuteAttributes:
    """Axis `i` of the result is axis `order[i]` of the operand."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAttributes:
    """Row `index` of a table, kept as a first axis of size 1: [N, ..] -> [1, ..]."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CastAttributes:
    """Rounds to `dtype`, to nearest even."""

    dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarAttributes:
    """For pointwise ops with a constant operand."""

    value: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class FillAttributes:
    """A tensor of one value."""

    shape: tuple[int, ...]
    value: Scalar
    dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class PadAttributes:
    """Appends `count` zeros on the last axis."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One step of a pointwise program.

    `op` is a pointwise row of the op table without attributes or with a scalar (`add`,
    `mul_scalar`, ...); `arguments` are indices: first the operands of the node, then the results
    of earlier instructions.
    """

    op: str
    arguments: tuple[int, ...]
    value: Scalar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseAttributes:
    """A group of pointwise ops as one kernel; `results` index operands and instructions, one a
    result.

    Operands broadcast against each other as in numpy; every intermediate is float32.
    """

    program: tuple[Instruction, ...]
    results: tuple[int, ...]
    dtypes: tuple[DType, ...]
