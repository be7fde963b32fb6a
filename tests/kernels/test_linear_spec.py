"""The linear family without Triton: problems, candidates, and the calls they become."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyc.compiler.ir.attributes import LinearAttributes
from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.types import DType, TensorType
from policyc.kernels.layout import LayoutError
from policyc.kernels.linear_spec import LinearFamily, row_class
from policyc.kernels.linear_tiles import Tile
from policyc.kernels.spec import Descriptor, KernelCall, View
from tests.kernels.cases import HOPPER, contiguous_view
from tests.kernels.linear_cases import Product

FAMILY = LinearFamily()
MAPPED = Tile(block_m=128, block_n=128, side_n=32, block_k=64, num_warps=8, num_stages=4)
PERSISTENT = Tile(
    block_m=128, block_n=256, block_k=64, num_warps=8, num_stages=3, persistent=1, store_map=1
)
POINTERS = Tile(block_m=16, block_n=32, block_k=64, num_warps=4, num_stages=3, maps=0)


@pytest.mark.parametrize(
    ("product", "key"),
    [
        (Product(m=968, n=2560, k=2048), "linear m=1024 n=2560 k=2048 bf16"),
        (
            Product(m=768, n=4304, k=1152, bias=True, activation="gelu_tanh"),
            "linear m=768 n=4304 k=1152 bf16 gelu_tanh",
        ),
        (
            Product(m=50, n=4096, k=1024, op="gated_linear", activation="silu"),
            "gated_linear m=64 n=4096 k=1024 bf16 silu",
        ),
        (
            Product(m=10, n=1024, k=4096, op="split_linear", splits=4),
            "split_linear m=16 n=1024 k=4096 bf16 splits=4",
        ),
        (Product(m=1, n=7, k=32, dtype=DType.F32), "linear m=16 n=7 k=32 f32"),
    ],
)
def test_problem_keys(product: Product, key: str) -> None:
    problem = FAMILY.problem(product.node, product.types)
    assert (problem.op, problem.key) == (product.op, key)


def test_row_classes() -> None:
    rows = (1, 16, 17, 64, 65, 513, 768, 968, 1025, 7744)
    assert [row_class(m) for m in rows] == [16, 16, 32, 64, 128, 768, 768, 1024, 1536, 8192]


def test_equal_problems_have_equal_candidates() -> None:
    first, second = Product(m=968, n=2560, k=2048), Product(m=800, n=2560, k=2048)
    assert FAMILY.problem(first.node, first.types) == FAMILY.problem(second.node, second.types)
    assert FAMILY.candidates(first.node, first.types, HOPPER) == FAMILY.candidates(
        second.node, second.types, HOPPER
    )


def test_lengths_change_neither_problem_nor_candidates() -> None:
    plain = Product(m=968, n=2560, k=2048)
    bounded = replace(plain, groups=1)
    assert FAMILY.problem(plain.node, plain.types) == FAMILY.problem(bounded.node, bounded.types)
    assert FAMILY.candidates(plain.node, plain.types, HOPPER) == FAMILY.candidates(
        bounded.node, bounded.types, HOPPER
    )


@pytest.mark.parametrize("tile", [MAPPED, PERSISTENT, POINTERS])
def test_lengths_follow_the_bias(tile: Tile) -> None:
    bounded = Product(m=968, n=2560, k=2048, bias=True, groups=4)
    call = bounded.call(FAMILY, tile.parameters, HOPPER)
    arguments = dict(call.arguments)
    names = [name for name, argument in arguments.items() if isinstance(argument, View)]
    assert names[-2:] == ["bias", "length"]
    assert isinstance(length := arguments["length"], View) and length.base == "length"
    assert dict(call.constants)["GROUPS"] == 4
    plain = replace(bounded, groups=0).call(FAMILY, tile.parameters, HOPPER)
    assert dict(plain.arguments)["length"] is None and dict(plain.constants)["GROUPS"] == 0


def test_lengths_that_do_not_divide_the_rows_are_refused() -> None:
    bounded = Product(m=10, n=64, k=64, groups=5)
    length = replace(bounded.views[-1], shape=(3,))
    out = contiguous_view("out", bounded.node.output.type)
    with pytest.raises(LayoutError, match="G dividing 10 rows"):
        FAMILY.calls(
            bounded.node, (*bounded.views[:2], length), (out,), None, POINTERS.parameters, HOPPER
        )


def test_no_workspace() -> None:
    product = Product(m=50, n=1024, k=4096, op="split_linear", splits=4)
    assert FAMILY.scratch_bytes(product.node, product.types, MAPPED.parameters) == 0


def test_mapped_call() -> None:
    product = Product(m=968, n=2560, k=2048, bias=True)
    call = product.call(FAMILY, MAPPED.parameters, HOPPER)
    arguments, constants = dict(call.arguments), dict(call.constants)
    assert call.kernel == "linear:mapped_linear"
    assert call.grid == (8 * 16, 1, 1)
    assert (call.num_warps, call.num_stages, call.pdl) == (8, 4, True)
    assert blocks_of(call) == {"x_map": (128, 64), "w_map": (128, 64), "side_map": (32, 64)}
    assert isinstance(arguments["out"], View) and arguments["w"] is None
    assert constants["SPLIT_K"] == constants["K"] == 2048
    assert (constants["PREFETCH"], constants["PDL"]) == (0, True)


def blocks_of(call: KernelCall) -> dict[str, tuple[int, ...]]:
    return {name: a.block for name, a in call.arguments if isinstance(a, Descriptor)}


def test_persistent_call_stores_half_the_width_of_a_gated_tile() -> None:
    product = Product(m=968, n=16384, k=2048, op="gated_linear", activation="gelu_tanh")
    call = product.call(FAMILY, PERSISTENT.parameters, HOPPER)
    assert call.kernel == "linear:persistent_linear"
    assert call.grid == (132, 1, 1)
    assert dict(call.constants)["PROGRAMS"] == 132
    assert blocks_of(call) == {"x_map": (128, 64), "w_map": (256, 64), "out": (128, 128)}
    few = Product(m=100, n=512, k=64).call(FAMILY, PERSISTENT.parameters, HOPPER)
    assert few.grid == (2, 1, 1)


def test_prefetch_is_bounded_by_the_range_and_by_the_requests_of_a_program() -> None:
    tile = Tile(block_m=64, block_n=32, block_k=128, num_warps=4, num_stages=4, prefetch=1)
    split = Product(m=50, n=1024, k=4096, op="split_linear", splits=4)
    call = split.call(FAMILY, tile.parameters, HOPPER)
    assert call.grid == (32, 4, 1)
    assert dict(call.constants)["PREFETCH"] == dict(call.constants)["SPLIT_K"] == 1024
    assert isinstance(dict(call.arguments)["w"], View)
    wide = Product(m=50, n=1024, k=16384).call(
        FAMILY, replace(tile, block_n=128).parameters, HOPPER
    )
    assert dict(wide.constants)["PREFETCH"] == 512


@pytest.mark.parametrize(
    ("k", "block_n", "columns", "chunk"),
    [(1024, 64, 1024, 512), (1024, 32, 1024, 256), (4096, 64, 4096, 2048), (16384, 256, 1024, 1024),
     (592, 128, 1024, 512), (64, 64, 64, 64)],
)  # fmt: skip
def test_bulk_requests_are_one_a_thread_within_the_weights(
    k: int, block_n: int, columns: int, chunk: int
) -> None:
    tile = Tile(block_m=64, block_n=block_n, block_k=64, num_warps=4, num_stages=4, prefetch=2)
    call = Product(m=50, n=1024, k=k).call(FAMILY, tile.parameters, HOPPER)
    constants = dict(call.constants)
    assert (constants["PREFETCH"], constants["CHUNK"]) == (columns, chunk)
    assert chunk <= k


def test_pointer_call_of_a_slice_of_a_batch() -> None:
    call = sliced_call(POINTERS)
    constants = dict(call.constants)
    assert call.kernel == "linear:strided_linear"
    assert call.grid == (2, 1, 1)
    assert [constants[n] for n in ("M", "INNER_M", "STRIDE_OUTER", "STRIDE_X")] == [6, 3, 200, 40]


def sliced_call(tile: Tile) -> KernelCall:
    """Rows 1 to 3 of each of two samples of 5 rows."""
    x, w = TensorType(DType.BF16, (2, 3, 40)), TensorType(DType.BF16, (64, 40))
    node = plain_node(TensorType(DType.BF16, (2, 3, 64)))
    view = View(base="x", offset=40, dtype=DType.BF16, shape=x.shape, strides=(200, 40, 1))
    return one_call(node, view, contiguous_view("@w", w), tile)


def plain_node(result: TensorType) -> Node:
    product = Product(m=1, n=1, k=1)
    output = replace(product.node.output, type=result)
    attrs = LinearAttributes(dtype=result.dtype)
    return Node(op="linear", inputs=("x", "@w"), outputs=(output,), attrs=attrs)


def one_call(node: Node, x: View, w: View, tile: Tile) -> KernelCall:
    out = contiguous_view("out", node.output.type)
    (call,) = FAMILY.calls(node, (x, w), (out,), None, tile.parameters, HOPPER)
    return call


def test_rows_with_two_strides_have_no_tensor_map() -> None:
    with pytest.raises(LayoutError, match="need two strides, a tensor map has one"):
        sliced_call(MAPPED)


@pytest.mark.parametrize(("offset", "stride"), [(4, 64), (0, 68)])
def test_misaligned_views_have_no_tensor_map(offset: int, stride: int) -> None:
    node = plain_node(TensorType(DType.BF16, (10, 64)))
    x = View(base="x", offset=offset, dtype=DType.BF16, shape=(10, 64), strides=(stride, 1))
    w = contiguous_view("@w", TensorType(DType.BF16, (64, 64)))
    message = f"offset {2 * offset} and stride {2 * stride}"
    with pytest.raises(LayoutError, match=message):
        one_call(node, x, w, MAPPED)
    assert one_call(node, x, w, POINTERS).kernel == "linear:strided_linear"


def test_strided_result_and_transposed_weight_are_refused() -> None:
    node = plain_node(TensorType(DType.BF16, (10, 64)))
    x = contiguous_view("x", TensorType(DType.BF16, (10, 32)))
    w = contiguous_view("@w", TensorType(DType.BF16, (64, 32)))
    with pytest.raises(LayoutError, match="unit stride along K"):
        one_call(node, x, replace(w, strides=(1, 64)), POINTERS)
    out = replace(contiguous_view("out", node.output.type), strides=(128, 1))
    with pytest.raises(LayoutError, match="expected a contiguous one"):
        FAMILY.calls(node, (x, w), (out,), None, POINTERS.parameters, HOPPER)
