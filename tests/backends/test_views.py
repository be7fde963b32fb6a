"""View resolution, against numpy on a buffer that numbers its elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyc.backends.errors import LoweringError
from policyc.backends.views import contiguous, reshaped_strides, resolve_views, window
from policyc.compiler.ir.attributes import NoAttributes
from policyc.compiler.ir.graph import Node, Rate
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.types import DType, TensorType
from policyc.kernels.spec import View
from tests.passes.graphs import (
    expanded,
    graph,
    permuted,
    reshaped,
    rms_norm,
    row,
    sliced,
    stage,
    toy_graph,
    value,
)

F32 = DType.F32


def elements(view: View, count: int) -> np.ndarray:
    """What a view shows of a buffer that holds 0, 1, 2, ..."""
    buffer = np.arange(count)
    strides = tuple(stride * buffer.itemsize for stride in view.strides)
    return np.lib.stride_tricks.as_strided(buffer[view.offset :], view.shape, strides)


@st.composite
def view_ops(draw: st.DrawFn, shape: tuple[int, ...]) -> Node:
    axis = draw(st.integers(0, len(shape) - 1))
    kind = draw(st.sampled_from(["slice", "permute", "row", "expand", "reshape"]))
    if kind == "slice":
        start = draw(st.integers(0, shape[axis] - 1))
        stop = draw(st.integers(start + 1, shape[axis]))
        size = (*shape[:axis], stop - start, *shape[axis + 1 :])
        return sliced("x", value("y", F32, *size), axis, start, stop)
    if kind == "permute":
        order = draw(st.permutations(range(len(shape))))
        return permuted("x", value("y", F32, *(shape[i] for i in order)), *order)
    if kind == "row":
        index = draw(st.integers(0, shape[0] - 1))
        return row("x", value("y", F32, 1, *shape[1:]), index)
    if kind == "expand":
        wide = tuple(3 if size == 1 else size for size in shape)
        return expanded("x", value("y", F32, *wide))
    count = int(np.prod(shape))
    divisor = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
    choices = [(divisor, count // divisor), (1, divisor, count // divisor), (count,)]
    return reshaped("x", value("y", F32, *draw(st.sampled_from(choices))))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_chain_of_views_shows_the_elements_that_numpy_does(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(4, 6), (2, 3, 4), (12,), (2, 1, 6), (3, 4, 2, 2)]))
    count = int(np.prod(shape))
    view = contiguous("x", TensorType(F32, shape))
    expected = np.arange(count).reshape(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        node = data.draw(view_ops(view.shape))
        (expected,) = row_of(node.op).reference(node.attrs, (expected,))
        moved = window(node, view)
        if moved is None:
            assert node.op == "reshape"
            # numpy agrees that these elements have no such strides.
            with pytest.raises(AttributeError):
                elements(view, count).shape = node.output.type.shape
            return
        view = moved
        assert np.array_equal(elements(view, count), expected)


def test_reshape_that_strides_cannot_express() -> None:
    columns = View(base="x", offset=0, dtype=F32, shape=(4, 3), strides=(6, 1))
    assert reshaped_strides(columns, (12,)) is None
    assert reshaped_strides(columns, (2, 2, 3)) == (12, 6, 1)
    assert reshaped_strides(columns, (2, 6)) is None
    assert reshaped_strides(columns, (4, 1, 3, 1)) is not None


def test_toy_graph_needs_no_copy() -> None:
    placement = resolve_views(toy_graph())
    assert placement.copies == frozenset()
    assert [item.name for item in placement.work] == ["qkv", "%0", "%1", "sum", "%4", "actions"]
    v = placement.views["v"]
    assert (v.base, v.offset, v.shape, v.strides) == ("qkv", 32, (16, 64), (96, 1))
    assert placement.work[3].operands[0] == v


def test_reshape_becomes_a_copy_of_the_window() -> None:
    nodes = (
        rms_norm("x", value("%0", F32, 4, 6)),
        sliced("%0", value("%1", F32, 4, 3), 1, 2, 5),
        reshaped("%1", value("%2", F32, 12)),
        rms_norm("%2", value("y", F32, 12)),
    )
    whole = graph(
        ((value("x", F32, 4, 6), Rate.STEP),), (), (stage("s", Rate.STEP, *nodes),), ("y",)
    )
    placement = resolve_views(whole)
    assert placement.copies == {"%2"}
    copy = placement.work[1]
    assert (copy.name, copy.node.op) == ("%2", "copy")
    assert copy.operands == (placement.views["%1"],)
    assert copy.results[0].base == "%2"
    assert copy.results[0].shape == (4, 3) and copy.results[0].is_contiguous
    assert placement.views["%2"] == contiguous("%2", TensorType(F32, (12,)))


@pytest.mark.parametrize(("stop", "copied"), [(64, False), (63, True)])
def test_what_the_host_reads_is_contiguous_and_aligned(stop: int, copied: bool) -> None:
    nodes = (
        rms_norm("x", value("%0", F32, 128)),
        sliced("%0", value("y", F32, 128 - stop), 0, stop, 128),
    )
    whole = graph(
        ((value("x", F32, 128), Rate.STEP),), (), (stage("s", Rate.STEP, *nodes),), ("y",)
    )
    assert resolve_views(whole).copies == ({"y"} if copied else frozenset())


def test_row_of_a_weight() -> None:
    nodes = (row("@t", value("%0", F32, 1, 8), 3), rms_norm("%0", value("y", F32, 1, 8)))
    whole = graph((), (value("@t", F32, 5, 8),), (stage("s", Rate.STEP, *nodes),), ("y",))
    view = resolve_views(whole).views["%0"]
    assert (view.base, view.offset, view.shape) == ("@t", 24, (1, 8))


def test_window_on_a_weight_that_the_host_reads_is_copied() -> None:
    nodes = (row("@t", value("y", F32, 1, 64), 0),)
    whole = graph((), (value("@t", F32, 5, 64),), (stage("s", Rate.STEP, *nodes),), ("y",))
    assert resolve_views(whole).copies == {"y"}


def test_view_op_without_a_rule() -> None:
    node = Node(op="twist", inputs=("x",), outputs=(value("y", F32, 2),), attrs=NoAttributes())
    with pytest.raises(LoweringError, match="y: the view op twist has no rule"):
        window(node, contiguous("x", TensorType(F32, (2,))))
