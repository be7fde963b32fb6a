"""What a call asks of the compiler: types, alignment promises, constants and identity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyc.backends.errors import LoweringError
from policyc.backends.source import source_of
from policyc.compiler.ir.types import DType
from policyc.kernels.spec import Argument, Descriptor, KernelCall, View


def view(dtype: DType = DType.BF16, offset: int = 0, *shape: int) -> View:
    shape = shape or (4, 8)
    return View(base="x", offset=offset, dtype=dtype, shape=shape, strides=(8, 1)[-len(shape) :])


def call(*arguments: tuple[str, Argument]) -> KernelCall:
    return KernelCall(
        kernel="norm:norm_rows",
        arguments=arguments,
        constants=(("D", 8), ("PDL", True)),
        grid=(1, 1, 1),
        num_warps=4,
        num_stages=1,
        pdl=True,
    )


def test_types_and_constants() -> None:
    source = source_of(
        call(
            ("a", view()),
            ("mask", view(DType.BOOL)),
            ("none", None),
            ("map", Descriptor(view=view(), block=(16, 64))),
            ("count", 3),
            ("eps", 1e-6),
        )
    )
    assert source.signature == (
        ("a", "*bf16"),
        ("mask", "*u8"),
        ("map", "tensordesc<bf16[16, 64]>"),
        ("count", "i32"),
        ("eps", "fp32"),
    )
    assert source.constants == (("D", 8), ("PDL", True), ("none", None))
    assert source.parameter_sizes == (8, 8, 128, 4, 4, 8, 8, 4, 4, 8, 8)


@pytest.mark.parametrize(
    ("argument", "divisible"),
    [
        (view(DType.BF16, 8), True),
        (view(DType.BF16, 4), False),
        (view(DType.F32, 4), True),
        (view(DType.BOOL, 8), False),
        (32, True),
        (0, True),
        (1, False),
        (24, False),
        (16.0, False),
        (Descriptor(view=view(), block=(16, 64)), False),
    ],
)
def test_alignment_is_promised_only_where_it_holds(argument: Argument, divisible: bool) -> None:
    assert source_of(call(("a", argument))).divisible == (("a",) if divisible else ())


def test_one_is_an_ordinary_integer() -> None:
    assert source_of(call(("n", 1))).id == source_of(call(("n", 3))).id


def test_identity_is_decided_by_what_is_compiled() -> None:
    base = source_of(call(("a", view()), ("n", 16)))
    same = source_of(replace(call(("a", view(DType.BF16, 8)), ("n", 32)), grid=(9, 1, 1)))
    assert base.id == same.id
    assert base.id.startswith("norm_rows_")
    others = [
        source_of(call(("a", view(DType.BF16, 4)), ("n", 16))),
        source_of(call(("a", view(DType.F32)), ("n", 16))),
        source_of(replace(call(("a", view()), ("n", 16)), num_warps=8)),
        source_of(replace(call(("a", view()), ("n", 16)), pdl=False)),
        source_of(replace(call(("a", view()), ("n", 16)), program="x = 1")),
        source_of(replace(call(("a", view()), ("n", 16)), constants=(("D", 9),))),
    ]
    assert len({base.id, *(other.id for other in others)}) == 7


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (True, "a bool; expected it among the constants"),
        (2**31, "2147483648 does not fit 32 bits"),
        (Descriptor(view=view(), block=(64,)), r"block \(64,\) for a view of shape \(4, 8\)"),
    ],
)
def test_arguments_that_no_kernel_takes(argument: Argument, message: str) -> None:
    with pytest.raises(LoweringError, match=f"kernel norm:norm_rows, argument a: {message}"):
        source_of(call(("a", argument)))
