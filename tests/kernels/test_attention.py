"""Attention kernels: values by the interpreter against the op table, machine code for GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policyc.compiler.ir.attributes import AttentionAttributes
from policyc.compiler.ir.types import DType
from policyc.kernels.attention_spec import AttentionFamily
from policyc.kernels.spec import Parameters
from tests.kernels.cases import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    HOST,
    Case,
    Problem,
    Run,
    TestDevice,
    difference,
    runnable,
)
from tests.kernels.compiling import compile_call

FAMILY = AttentionFamily()

# float32: sums over up to a few hundred products. bfloat16: weights and result are cut to 8 bits.
LIMITS = {DType.F32: 5e-6, DType.BF16: 2e-2}


def attention_case(
    sizes: tuple[int, int, int, int],
    heads: tuple[int, int],
    width: int,
    *,
    dtype: DType = DType.F32,
    lengths: tuple[int, ...] = (),
    query_lengths: tuple[int, ...] = (),
    seed: int = 0,
) -> Case:
    """`sizes` are batch, queries, keys, second keys. Operands are windows on wider buffers."""
    batch, queries, keys, second = sizes
    q_heads, kv_heads = heads
    problem = Problem(seed=seed + 7 * queries + keys + second)
    problem.add(
        problem.normal((batch, queries, q_heads, width), dtype),
        within=(batch, queries, q_heads + 2 * kv_heads, width),
        at=(0, 0, 0, 0),
    )
    for at in (0, kv_heads):
        problem.add(
            problem.normal((batch, keys, kv_heads, width), dtype),
            within=(batch, keys, 2 * kv_heads, width),
            at=(0, 0, at, 0),
        )
    if lengths:
        problem.add(np.array(lengths, np.int32))
    if second:
        for at in (0, kv_heads):
            problem.add(
                problem.normal((batch, second, kv_heads, width), dtype),
                within=(batch, second, 2 * kv_heads, width),
                at=(0, 0, at, 0),
            )
    if query_lengths:
        problem.add(np.array(query_lengths, np.int32))
    attrs = AttentionAttributes(
        scale=width**-0.5,
        length=bool(lengths),
        second=bool(second),
        query_length=bool(query_lengths),
        dtype=dtype,
    )
    return problem.case("attention", attrs)


def check(case: Case, run: Run, parameters: Parameters) -> None:
    found = case.run(FAMILY, parameters, HOST, run)[0]
    distance = difference(found, case.expected[0])
    assert distance.relative <= LIMITS[case.node.output.type.dtype], f"{parameters}: {distance}"


def choice(**changes: int) -> Parameters:
    values = {"block_m": 16, "block_n": 16, "num_stages": 1, "num_warps": 4, "splits": 1, **changes}
    return tuple(sorted(values.items()))


@pytest.mark.parametrize(
    ("sizes", "heads", "width", "lengths"),
    [
        ((3, 16, 16, 0), (2, 2), 72, ()),  # vision, head split into 64 + 16 columns
        ((2, 19, 112, 0), (4, 1), 32, (97, 33)),  # prefix
        ((1, 10, 112, 10), (4, 1), 32, (98,)),  # expert
        ((2, 5, 37, 3), (6, 2), 16, (0, 36)),  # only the second segment in one sample
        ((1, 1, 1, 0), (1, 1), 80, (1,)),
    ],
)
@pytest.mark.parametrize("splits", [1, 3])
def test_matches_reference(
    interpreted: Run,
    sizes: tuple[int, int, int, int],
    heads: tuple[int, int],
    width: int,
    lengths: tuple[int, ...],
    splits: int,
) -> None:
    case = attention_case(sizes, heads, width, lengths=lengths, seed=splits)
    check(case, interpreted, choice(splits=splits))


@pytest.mark.parametrize(
    ("sizes", "heads", "width", "lengths"),
    [((1, 12, 240, 12), (8, 1), 32, (201,)), ((2, 16, 16, 0), (2, 2), 72, ())],
)
def test_bfloat16_candidates(
    interpreted: Run,
    sizes: tuple[int, int, int, int],
    heads: tuple[int, int],
    width: int,
    lengths: tuple[int, ...],
) -> None:
    case = attention_case(sizes, heads, width, lengths=lengths, dtype=DType.BF16)
    for parameters in runnable(FAMILY, case, HOST)[:3]:
        check(case, interpreted, parameters)


@pytest.mark.parametrize("splits", [1, 4])
def test_no_keys_give_zeros(interpreted: Run, splits: int) -> None:
    case = attention_case((2, 3, 20, 0), (2, 1), 16, lengths=(0, 20))
    found = case.run(FAMILY, choice(splits=splits), HOST, interpreted)[0]
    assert np.all(found[0] == 0)
    assert difference(found[1], case.expected[0][1]).relative < 1e-5


@pytest.mark.parametrize("splits", [1, 3])
def test_keys_beyond_the_length_do_not_act(interpreted: Run, splits: int) -> None:
    """Even NaN there leaves the result alone."""
    case = attention_case((1, 6, 50, 4), (4, 1), 32, lengths=(29,))
    buffers = {name: array.copy() for name, array in case.buffers.items()}
    for name in ("%1", "%2"):
        buffers[name].reshape(1, 50, 2, 32)[:, 29:] = np.nan
    poisoned = replace(case, buffers=buffers)
    plain = case.run(FAMILY, choice(splits=splits), HOST, interpreted)[0]
    found = poisoned.run(FAMILY, choice(splits=splits), HOST, interpreted)[0]
    assert np.array_equal(plain, found)


@pytest.mark.parametrize("splits", [1, 3])
def test_padding_queries_visit_no_key(interpreted: Run, splits: int) -> None:
    """Of 20 queries with 2 heads, 16 rows a tile: 9 queries are needed, so the last tile is not."""
    case = attention_case(
        (2, 20, 20, 3), (2, 1), 16, lengths=(9, 20), query_lengths=(9, 20), seed=splits
    )
    assert "t=<=20 s=<=20+3" in FAMILY.problem(case.node, case.types).key
    found = case.run(FAMILY, choice(splits=splits), HOST, interpreted)[0]
    assert difference(found[0, :9], case.expected[0][0, :9]).relative < 5e-6
    assert difference(found[1], case.expected[0][1]).relative < 5e-6
    assert np.all(found[0, 16:] == 0)


def expert_case() -> Case:
    return attention_case((1, 50, 968, 50), (8, 1), 256, dtype=DType.BF16, lengths=(830,))


def test_expert_is_split_until_the_processors_are_busy() -> None:
    case = expert_case()
    best = dict(runnable(FAMILY, case, HOPPER)[0])
    programs = -(-400 // best["block_m"]) * best["splits"]
    assert 60 <= programs <= 132


def test_problem_names_what_decides_the_choice() -> None:
    case = expert_case()
    key = FAMILY.problem(case.node, case.types).key
    assert key == "attention b=1 t=50 s=<=968+50 h=8/1 d=256 bf16->bf16"


def test_small_shared_memory_rejects_tiles_with_a_reason() -> None:
    case = expert_case()
    rejected = [c.rejected for c in FAMILY.candidates(case.node, case.types, AMPERE) if c.rejected]
    assert any("bytes of shared memory, a block has 101376" in reason for reason in rejected)
    assert runnable(FAMILY, case, AMPERE)


@pytest.mark.parametrize(
    ("device", "kind"),
    [(HOPPER, "expert"), (HOPPER, "vision"), (AMPERE, "expert"), (BLACKWELL, "expert")],
)
def test_compiles_without_spills(device: TestDevice, kind: str) -> None:
    case = expert_case()
    if kind == "vision":
        case = attention_case((3, 256, 256, 0), (16, 16), 72, dtype=DType.BF16)
    parameters = runnable(FAMILY, case, device)[0]
    for call in case.calls(FAMILY, parameters, device):
        usage = compile_call(call, device.compute_capability)
        assert usage.local_bytes == 0, (
            f"{call.kernel} {parameters}: {usage.local_bytes} bytes spilled"
        )
        assert usage.shared_bytes <= device.shared_bytes_per_block
        assert ("griddepcontrol.wait" in usage.ptx) == device.has_dependent_launch
