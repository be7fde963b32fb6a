from __future__ import annotations

import pytest

from policyc.compiler.costs import RULES, Cost, CostError, node_cost
from policyc.compiler.ir.attributes import (
    AddNormAttributes,
    AttentionAttributes,
    EmbeddingAttributes,
    Instruction,
    LinearAttributes,
    NoAttributes,
    NormAttributes,
    PointwiseAttributes,
    RopeAttributes,
    SplitLinearAttributes,
)
from policyc.compiler.ir.graph import Node, Value
from policyc.compiler.ir.types import DType, TensorType
from policyc.kernels.families import FAMILIES
from policyc.profiles.loader import load_profile

BF16, F32, I32 = DType.BF16, DType.F32, DType.I32


def tensor(dtype: DType, *shape: int) -> TensorType:
    return TensorType(dtype, shape)


def cost(op: str, attrs: object, operands: tuple[TensorType, ...], *results: TensorType) -> Cost:
    outputs = tuple(Value(name=f"y{i}", type=item) for i, item in enumerate(results))
    node = Node(op=op, inputs=("x",) * len(operands), outputs=outputs, attrs=attrs)
    return node_cost(node, operands)


def test_every_op_with_a_kernel_has_a_rule() -> None:
    assert {op for family in FAMILIES for op in family.ops} <= RULES.keys()


def test_products() -> None:
    x, w, y = tensor(BF16, 2, 3, 64), tensor(BF16, 10, 64), tensor(BF16, 2, 3, 10)
    plain = cost("linear", LinearAttributes(), (x, w), y)
    assert plain == Cost(flops=2 * 6 * 10 * 64, bytes=2 * (384 + 640 + 60), dtype=BF16)
    parts = tensor(F32, 4, 2, 3, 10)
    split = cost("split_linear", SplitLinearAttributes(splits=4), (x, w), parts)
    assert split == Cost(flops=plain.flops, bytes=2 * (384 + 640) + 4 * 240, dtype=BF16)


def test_attention_counts_the_keys_of_both_segments() -> None:
    q, k, k2 = tensor(BF16, 1, 5, 8, 16), tensor(BF16, 1, 100, 1, 16), tensor(BF16, 1, 5, 1, 16)
    attrs = AttentionAttributes(scale=1.0, length=True, second=True)
    found = cost("attention", attrs, (q, k, k, tensor(I32, 1), k2, k2), q)
    assert found.flops == 4 * (5 * 8) * (100 + 5) * 16
    assert found.bytes == 2 * (2 * 640 + 2 * 1600 + 2 * 80) + 4 and found.dtype is BF16


def test_norms_and_pointwise_groups() -> None:
    x = tensor(F32, 4, 32)
    norm = NormAttributes(eps=1e-6, scale=True)
    assert cost("rms_norm", norm, (x, tensor(F32, 32)), x).flops == 5 * 128
    add = AddNormAttributes(kind="layer", eps=1e-6, splits=3, gate=True)
    branch, vector = tensor(F32, 3, 4, 32), tensor(F32, 32)
    found = cost("add_norm", add, (branch, x, vector), x, x)
    assert found == Cost(flops=(6 + 1 + 2 + 1) * 128, bytes=4 * (384 + 128 + 32 + 256))
    group = PointwiseAttributes(
        program=(
            Instruction(op="add", arguments=(0, 1)),
            Instruction(op="silu", arguments=(2,)),
        ),
        results=(3,),
        dtypes=(F32,),
    )
    assert cost("pointwise", group, (x, x), x) == Cost(flops=256, bytes=3 * 512)


def test_tables_count_the_rows_that_are_read() -> None:
    ids, table, rows = tensor(I32, 1, 3), tensor(BF16, 1000, 8), tensor(BF16, 1, 3, 8)
    assert cost("embedding", EmbeddingAttributes(), (ids, table), rows).bytes == 12 + 48 + 48
    x, cos = tensor(F32, 1, 3, 2, 8), tensor(F32, 1000, 4)
    rope = RopeAttributes(start=True)
    found = cost("rope", rope, (x, cos, cos, tensor(I32, 1)), x)
    assert found.bytes == 2 * 192 + 2 * 3 * 4 * 4 + 4


def test_copies_move_each_element_twice() -> None:
    assert cost("copy", NoAttributes(), (tensor(F32, 4),), tensor(F32, 4)) == Cost(bytes=32)


def test_the_roof_is_the_larger_limit() -> None:
    profile = load_profile("h200")
    assert Cost(bytes=4_800_000).roof_us(profile) == pytest.approx(1.0)
    busy = Cost(flops=989_400_000, bytes=480_000, dtype=BF16)
    assert busy.roof_us(profile) == pytest.approx(1.0)
    assert busy.memory_us(profile) == pytest.approx(0.1)


def test_an_unknown_op_is_an_error() -> None:
    with pytest.raises(CostError, match="op fill has no rule"):
        cost("fill", NoAttributes(), ())
