"""Kernels that move elements: values by the interpreter, exactly; machine code for GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policyc.compiler.ir.attributes import (
    AxisAttributes,
    CastAttributes,
    EmbeddingAttributes,
    NoAttributes,
    PatchifyAttributes,
)
from policyc.compiler.ir.types import DType
from policyc.kernels.gather_spec import GatherFamily
from policyc.kernels.layout import LayoutError
from tests.kernels.cases import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    HOST,
    Case,
    Problem,
    Run,
    TestDevice,
    runnable,
)
from tests.kernels.compiling import compile_call

FAMILY = GatherFamily()


def check_exactly(case: Case, run: Run) -> None:
    for parameters in runnable(FAMILY, case, HOST)[:2]:
        found = case.run(FAMILY, parameters, HOST, run)[0]
        expected = case.expected[0].astype(case.node.output.type.dtype.numpy)
        assert np.array_equal(found, expected.astype(found.dtype)), parameters


def embedding_case(
    shape: tuple[int, int], vocabulary: int, width: int, scale: float, result: DType
) -> Case:
    problem = Problem(seed=width)
    problem.add(problem.random.integers(0, vocabulary, shape).astype(np.int32))
    problem.add(problem.normal((vocabulary, width)), name="@table")
    return problem.case("embedding", EmbeddingAttributes(scale=scale, dtype=result))


def masked_case(op: str, batch: int, rows: int, width: int, chance: float) -> Case:
    problem = Problem(seed=rows)
    if op == "compact_rows":
        problem.add(
            problem.normal((batch, rows, width)), within=(batch, rows, width + 8), at=(0, 0, 8)
        )
    problem.add(problem.random.random((batch, rows)) < chance)
    return problem.case(op, NoAttributes())


def patchify_case(shape: tuple[int, ...], patch: int, columns: int, dtype: DType) -> Case:
    problem = Problem(seed=columns)
    problem.add(problem.normal(shape, DType.F32))
    return problem.case("patchify", PatchifyAttributes(patch=patch, columns=columns, dtype=dtype))


def concat_case(shapes: tuple[tuple[int, ...], ...], axis: int, dtype: DType) -> Case:
    problem = Problem(seed=len(shapes))
    for shape in shapes:
        within = (*shape[:-1], shape[-1] + 3)
        problem.add(
            problem.normal(shape, DType.F32).astype(dtype.numpy),
            within=within,
            at=(0,) * len(shape),
        )
    return problem.case("concat", AxisAttributes(axis=axis))


def test_embedding(interpreted: Run) -> None:
    case = embedding_case((2, 7), 31, 100, 11.3125, DType.F32)
    parameters = runnable(FAMILY, case, HOST)[0]
    found = case.run(FAMILY, parameters, HOST, interpreted)[0]
    assert np.allclose(found, case.expected[0], rtol=1e-6, atol=0)


def test_embedding_of_an_unknown_id_is_zero_and_does_not_fault(interpreted: Run) -> None:
    case = embedding_case((1, 3), 5, 16, 1.0, DType.F32)
    ids = np.array([2**31 - 1, 4, -7], np.int32)
    case = replace(case, buffers={**case.buffers, "%0": ids})
    found = case.run(FAMILY, runnable(FAMILY, case, HOST)[0], HOST, interpreted)[0][0]
    assert np.all(found[[0, 2]] == 0)
    assert np.array_equal(found[1], case.buffers["@table"].reshape(5, 16)[4].astype(np.float64))


@pytest.mark.parametrize("chance", [0.0, 0.6, 1.0])
def test_compact_rows(interpreted: Run, chance: float) -> None:
    check_exactly(masked_case("compact_rows", 2, 13, 24, chance), interpreted)


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_count_true(interpreted: Run, chance: float) -> None:
    check_exactly(masked_case("count_true", 3, 37, 0, chance), interpreted)


def test_patchify(interpreted: Run) -> None:
    check_exactly(patchify_case((2, 2, 3, 28, 42), 14, 592, DType.F32), interpreted)
    check_exactly(patchify_case((1, 1, 3, 4, 6), 2, 12, DType.F32), interpreted)


@pytest.mark.parametrize(
    ("shapes", "axis", "dtype"),
    [
        (((2, 3, 8), (2, 5, 8)), 1, DType.F32),
        (((1, 4), (1, 9), (1, 2)), 1, DType.BOOL),
        (((2, 3, 5, 7), (4, 3, 5, 7)), 0, DType.BF16),
        (((3, 2),), 0, DType.I32),
    ],
)
def test_concat(
    interpreted: Run, shapes: tuple[tuple[int, ...], ...], axis: int, dtype: DType
) -> None:
    case = concat_case(shapes, axis, dtype)
    assert len(case.calls(FAMILY, runnable(FAMILY, case, HOST)[0], HOST)) == len(shapes)
    check_exactly(case, interpreted)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (DType.F32, DType.I32),
        (DType.I32, DType.BOOL),
        (DType.BF16, DType.F32),
        (DType.BOOL, DType.F32),
    ],
)
def test_cast(interpreted: Run, source: DType, target: DType) -> None:
    problem = Problem(seed=1)
    values = problem.normal((3, 5), DType.F32, 3.0)
    values[0] = 0
    problem.add(values.astype(source.numpy))
    check_exactly(problem.case("cast", CastAttributes(dtype=target)), interpreted)


def test_copy_of_a_permuted_and_expanded_view(interpreted: Run) -> None:
    """Axes [4, 3, 2, 5]: the first two swapped in memory, the third repeated with stride 0."""
    problem = Problem(seed=3)
    stored = problem.normal((3, 4, 5), DType.F32)
    problem.add(np.broadcast_to(stored.transpose(1, 0, 2)[:, :, None], (4, 3, 2, 5)).copy())
    case = problem.case("cast", CastAttributes(dtype=DType.F32))
    (operand,) = case.operands
    case = replace(
        case,
        node=replace(case.node, op="copy", attrs=NoAttributes()),
        operands=(replace(operand, strides=(5, 20, 0, 1)),),
        buffers={operand.base: stored.reshape(-1)},
    )
    check_exactly(case, interpreted)


def test_view_with_too_many_axes_is_refused() -> None:
    case = concat_case(((2, 2, 2, 2, 2),), 0, DType.F32)
    scrambled = replace(case.operands[0], strides=(2, 8, 1, 16, 32))
    case = replace(case, operands=(scrambled,))
    with pytest.raises(LayoutError, match="needs 5 axes, expected at most 4"):
        case.calls(FAMILY, runnable(FAMILY, case, HOST)[0], HOST)


def full_size_cases() -> dict[str, Case]:
    return {
        "embedding": embedding_case((1, 200), 300, 2048, 45.25, DType.BF16),
        "compact_rows": masked_case("compact_rows", 1, 968, 2048, 0.9),
        "count_true": masked_case("count_true", 1, 968, 0, 0.9),
        "patchify": patchify_case((1, 3, 3, 224, 224), 14, 592, DType.BF16),
        "concat": concat_case(((1, 768, 2048), (1, 200, 2048)), 1, DType.BF16),
    }


@pytest.mark.parametrize("name", ["embedding", "compact_rows", "count_true", "patchify", "concat"])
@pytest.mark.parametrize("device", [HOPPER, AMPERE, BLACKWELL])
def test_compiles_without_spills(name: str, device: TestDevice) -> None:
    case = full_size_cases()[name]
    for call in case.calls(FAMILY, runnable(FAMILY, case, device)[0], device):
        usage = compile_call(call, device.compute_capability)
        assert usage.local_bytes == 0
        assert ("griddepcontrol.wait" in usage.ptx) == device.has_dependent_launch
