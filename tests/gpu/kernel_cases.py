"""Problems of the GPU kernel checks: pi0.5's own sizes to check and time, odd sizes to check."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from policyc.compiler.ir.attributes import (
    AddNormAttributes,
    CastAttributes,
    Instruction,
    PointwiseAttributes,
)
from policyc.compiler.ir.types import Array, DType
from tests.kernels.cases import Case, Problem
from tests.kernels.test_attention import attention_case
from tests.kernels.test_gather import concat_case, embedding_case, masked_case, patchify_case
from tests.kernels.test_norm import add_norm_case, norm_case
from tests.kernels.test_rope import rope_case

Build = Callable[[], Case]

BF16, F32 = DType.BF16, DType.F32


def _plain_rms(rows: int, lengths: tuple[int, ...]) -> Case:
    attrs = AddNormAttributes(kind="rms", eps=1e-6, length=True, sum_dtype=BF16, dtype=BF16)
    return add_norm_case((1, rows, 2048), attrs, branch_dtype=BF16, lengths=lengths)


def _expert_norm(rows: int, splits: int, result: DType = BF16) -> Case:
    attrs = AddNormAttributes(
        kind="rms",
        eps=1e-6,
        splits=splits,
        gate=True,
        scale=True,
        shift=True,
        sum_dtype=BF16,
        dtype=result,
    )
    return add_norm_case((1, rows, 1024), attrs, branch_dtype=F32 if splits else BF16)


def _vision_norm(*, splits: int = 0, bias: bool = False, residual_rows: int = 0) -> Case:
    attrs = AddNormAttributes(
        kind="layer",
        eps=1e-6,
        splits=splits,
        bias=bias,
        scale=True,
        shift=True,
        sum_dtype=BF16,
        dtype=BF16,
    )
    dtype = F32 if splits else BF16
    return add_norm_case((3, 256, 1152), attrs, residual_rows=residual_rows, branch_dtype=dtype)


def euler_case(rows: int) -> Case:
    """x + v of a denoising step."""
    problem = Problem(seed=rows)
    problem.add(problem.normal((1, rows, 32), F32))
    problem.add(problem.normal((1, rows, 32), F32))
    program = (Instruction(op="add", arguments=(0, 1)),)
    attrs = PointwiseAttributes(program=program, results=(2,), dtypes=(F32,))
    return problem.case("pointwise", attrs)


def biased_case() -> Case:
    """x + (v + bias): a weight that repeats over rows."""
    problem = Problem(seed=7)
    problem.add(problem.normal((1, 7, 32), F32))
    problem.add(problem.normal((1, 7, 32), F32))
    problem.add(problem.normal((32,), F32), name="@bias")
    program = (
        Instruction(op="add", arguments=(1, 2)),
        Instruction(op="add", arguments=(0, 3)),
    )
    attrs = PointwiseAttributes(program=program, results=(4,), dtypes=(F32,))
    return problem.case("pointwise", attrs)


def activation_case() -> Case:
    """Every function of the generated kernels, on a prefix-sized tensor."""
    problem = Problem(seed=11)
    problem.add(problem.normal((1, 968, 2048), BF16))
    names = ("tanh", "gelu_tanh", "silu", "sigmoid", "sin", "cos", "exp", "neg")
    program = tuple(Instruction(op=name, arguments=(0,)) for name in names)
    last = len(names)
    sums = tuple(
        Instruction(op="add", arguments=(last if i == 0 else last + i, i + 1))
        for i in range(last - 1)
    )
    attrs = PointwiseAttributes(program=program + sums, results=(2 * last - 1,), dtypes=(F32,))
    return problem.case("pointwise", attrs)


def cast_case() -> Case:
    problem = Problem(seed=12)
    problem.add(problem.normal((1, 968, 2048), F32))
    return problem.case("cast", CastAttributes(dtype=BF16))


def permuted_case() -> Case:
    problem = Problem(seed=13)
    problem.add(problem.normal((1, 968, 2, 256), BF16), within=(1, 968, 10, 256), at=(0, 0, 8, 0))
    return problem.case("cast", CastAttributes(dtype=F32))


def _expert(rows: int, prefix: int) -> tuple[Build, ...]:
    """A denoising step of `rows` actions behind a prefix of `prefix` slots."""
    length = (prefix - 100,)
    return (
        lambda: attention_case(
            (1, rows, prefix, rows), (8, 1), 256, dtype=BF16, lengths=length, seed=1
        ),
        *(lambda splits=splits: _expert_norm(rows, splits) for splits in (0, 2, 4, 8)),
        *(lambda splits=splits: _expert_norm(rows, splits, F32) for splits in (0, 4)),
        lambda: norm_case("rms_norm", rows, 1024, F32, scale=True, shift=True, result=BF16),
        lambda: rope_case((1, rows, 9, 256), BF16, start=length, rows=prefix + rows),
        lambda: euler_case(rows),
    )


def _prefix(rows: int) -> tuple[Build, ...]:
    """Images and a prompt of 100 tokens in 200 slots through the language model."""
    length = (rows - 100,)
    return (
        lambda: attention_case(
            (1, rows, rows, 0), (8, 1), 256, dtype=BF16, lengths=length, query_lengths=length
        ),
        lambda: norm_case("rms_norm", rows, 2048, BF16, scale=False, shift=False, lengths=length),
        lambda: _plain_rms(rows, length),
        lambda: rope_case((1, rows, 9, 256), BF16, length=length, rows=rows),
        lambda: rope_case((1, rows, 1, 256), BF16, length=length, rows=rows),
        lambda: masked_case("compact_rows", 1, rows, 2048, 0.9),
        lambda: masked_case("count_true", 1, rows, 0, 0.9),
        lambda: concat_case(((1, rows - 200, 2048), (1, 200, 2048)), 1, BF16),
        lambda: concat_case(((1, rows - 200), (1, 200)), 1, DType.BOOL),
    )


FULL: tuple[Build, ...] = (
    *_expert(50, 968),
    *_prefix(968),
    lambda: attention_case((3, 256, 256, 0), (16, 16), 72, dtype=BF16),
    lambda: _vision_norm(),
    lambda: _vision_norm(splits=2, bias=True),
    lambda: embedding_case((1, 200), 8192, 2048, 45.2548, BF16),
    lambda: patchify_case((1, 3, 3, 224, 224), 14, 592, BF16),
    *_expert(10, 968),
    *_prefix(712),
)


def _batched(batch: int) -> tuple[Build, ...]:
    """Several samples at once; prompts of all lengths."""
    lengths = tuple(768 + 200 * sample // batch for sample in range(1, batch + 1))
    plain = AddNormAttributes(kind="rms", eps=1e-6, length=True, sum_dtype=BF16, dtype=BF16)
    rows, keys = (batch, 50, 968, 50), (batch, 968, 968, 0)
    return (
        lambda: attention_case(rows, (8, 1), 256, dtype=BF16, lengths=lengths, seed=1),
        lambda: attention_case(
            keys, (8, 1), 256, dtype=BF16, lengths=lengths, query_lengths=lengths
        ),
        lambda: attention_case((3 * batch, 256, 256, 0), (16, 16), 72, dtype=BF16),
        *(lambda splits=splits: _expert_norm(50 * batch, splits) for splits in (0, 2)),
        lambda: add_norm_case((batch, 968, 2048), plain, branch_dtype=BF16, lengths=lengths),
        lambda: rope_case((batch, 50, 9, 256), BF16, start=lengths, rows=1018),
        lambda: rope_case((batch, 968, 9, 256), BF16, length=lengths, rows=968),
    )


BATCHED: tuple[Build, ...] = (*_batched(8), *_batched(32)[:1])
"""Of 32 samples only the attention: the reference of a whole prefix takes minutes."""


def _length_cases() -> tuple[Build, ...]:
    """Lengths at the edges of key blocks, none at all, and all of them."""
    return tuple(
        lambda length=length: attention_case(
            (1, 50, 968, 50), (8, 1), 256, dtype=BF16, lengths=(length,), seed=length
        )
        for length in (0, 1, 63, 64, 65, 511, 967, 968)
    )


ODD: tuple[Build, ...] = (
    *_length_cases(),
    lambda: attention_case((2, 37, 301, 0), (8, 1), 256, dtype=BF16, lengths=(300, 0)),
    lambda: attention_case((2, 10, 112, 10), (4, 1), 32, dtype=BF16, lengths=(98, 7)),
    lambda: attention_case((2, 16, 240, 16), (8, 1), 32, lengths=(201, 240)),
    lambda: attention_case((3, 16, 16, 0), (2, 2), 72),
    lambda: attention_case((1, 9, 33, 0), (3, 3), 80, dtype=BF16),
    lambda: attention_case((1, 33, 65, 3), (8, 2), 128, lengths=(64,)),
    lambda: norm_case("layer_norm", 17, 144, F32, scale=True, shift=True),
    lambda: norm_case("rms_norm", 3, 6000, F32, scale=True, shift=False, weight="%"),
    lambda: norm_case("layer_norm", 5, 77, BF16, scale=True, shift=True),
    lambda: _expert_norm(63, 3),
    lambda: rope_case((2, 11, 5, 72), F32, start=(0, 4), rows=16),
    lambda: embedding_case((2, 7), 31, 100, 11.3125, F32),
    lambda: masked_case("compact_rows", 2, 113, 264, 0.5),
    lambda: masked_case("count_true", 3, 37, 0, 0.5),
    lambda: patchify_case((2, 2, 3, 28, 42), 14, 592, F32),
    lambda: concat_case(((2, 3, 5, 7), (4, 3, 5, 7)), 0, F32),
    lambda: _vision_norm(bias=True),
    lambda: _vision_norm(residual_rows=256),
    lambda: norm_case("layer_norm", 768, 1152, BF16, scale=True, shift=True),
    biased_case,
    activation_case,
    cast_case,
    permuted_case,
)


def tolerance(case: Case) -> float:
    """Largest difference allowed, relative to the largest value of the result.

    bfloat16 results round to 2**-9 of themselves, attention also rounds its weights. float32 sums
    and exponentials differ by a few units in the last place.
    """
    if any(value.type.dtype is BF16 for value in case.node.outputs):
        return 1.2e-2 if case.node.op == "attention" else 2.0**-8
    return 1e-5


def needed_rows(case: Case, array: Array) -> Array:
    """The part of a result, or of its reference, that must be right: all of it without lengths."""
    attrs = case.node.attrs
    by_query = getattr(attrs, "query_length", None)
    if not (getattr(attrs, "length", False) if by_query is None else by_query):
        return array
    lengths = case.buffers[case.operands[-1].base]
    rows = math.prod(array.shape[:2] if array.ndim == 4 else array.shape[:-1])
    groups = array.reshape(len(lengths), rows // len(lengths), -1)
    parts = [group[:length] for group, length in zip(groups, lengths, strict=True)]
    return np.concatenate(parts)


def poison_unused_keys(case: Case) -> None:
    """NaN in keys and values at and beyond the length: they must not act."""
    if case.node.op != "attention" or len(case.operands) < 4:
        return
    lengths = case.buffers[case.operands[3].base]
    for operand in case.operands[1:3]:
        buffer = case.buffers[operand.base]
        batch, keys, heads, width = operand.shape
        for sample, length in enumerate(np.minimum(lengths, keys)):
            start = operand.offset + sample * operand.strides[0]
            for key in range(int(length), keys):
                at = start + key * operand.strides[1]
                buffer[at : at + heads * width] = np.nan
