from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policyc.compiler.ir.attributes import CastAttributes
from policyc.compiler.ir.graph import Node, Value
from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.runtime_min.errors import InputError
from policyc.runtime_min.signature import Signature
from tests.runtime_min.bundles import BUCKETS, VOCABULARY, graph, tensors

SIGNATURE = Signature.of(graph(1), BUCKETS)


def test_the_signature_of_a_graph() -> None:
    assert SIGNATURE.vocabularies == {"tokens": VOCABULARY}
    assert SIGNATURE.required == ("images", "image_mask", "tokens", "token_mask", "noise")
    assert SIGNATURE.outputs == ("actions",)
    assert str(SIGNATURE.input_type("noise", 2)) == "f32[2,3,4]"


def test_the_vocabulary_is_found_through_a_cast() -> None:
    one = graph(1)
    cast = Node(
        op="cast",
        inputs=("tokens",),
        outputs=(Value(name="%0", type=TensorType(DType.I64, (1, 64))),),
        attrs=CastAttributes(dtype=DType.I64),
    )
    prompt = one.stages[0]
    embedding = replace(prompt.nodes[0], inputs=("%0", "@table"))
    stage = replace(prompt, nodes=(cast, embedding, *prompt.nodes[1:]))
    changed = one.with_stages((stage, *one.stages[1:]))
    assert Signature.of(changed, (1,)).vocabularies == {"tokens": VOCABULARY}


@pytest.mark.parametrize("batch", BUCKETS)
@pytest.mark.parametrize("integers", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_valid_tensors_become_the_graphs_types(batch: int, integers: type) -> None:
    given = tensors(batch)
    given["tokens"] = (given["tokens"] % 100).astype(integers)
    size, checked = SIGNATURE.check_inputs(given)
    assert size == batch
    assert checked["tokens"].dtype == np.int32
    np.testing.assert_array_equal(checked["tokens"], given["tokens"].astype(np.int32))
    assert all(array.flags.c_contiguous for array in checked.values())


def test_state_is_accepted_where_nothing_reads_it() -> None:
    _, checked = SIGNATURE.check_inputs({**tensors(), "state": np.zeros((1, 9), np.float32)})
    assert "state" not in checked


def test_an_input_that_nothing_reads_may_be_left_out() -> None:
    one = graph(1)
    prompt = one.stages[0]
    stage = replace(prompt, nodes=prompt.nodes[:2])
    signature = Signature.of(one.with_stages((stage, *one.stages[1:])), BUCKETS)
    given = tensors(2)
    del given["images"], given["image_mask"]
    _, checked = signature.check_inputs(given)
    assert checked["images"].shape == (2, 2, 3, 4, 4)


def put(name: str, array: Any) -> Callable[[dict[str, Array]], None]:
    return lambda given: given.__setitem__(name, array)


def poison(name: str, index: tuple[int, ...], value: Any) -> Callable[[dict[str, Array]], None]:
    return lambda given: given[name].__setitem__(index, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("noise"), "missing noise; unknown none; the policy takes images"),
        (put("nois", np.zeros(1)), "missing none; unknown nois"),
        (put("noise", [[0.0]]), "noise: expected a numpy array, got list"),
        (put("noise", np.zeros((1, 3, 4))), "expected float32, got float64"),
        (put("noise", np.zeros((3, 4), np.float32)), r"3 axes \(batch, horizon, action width\)"),
        (put("noise", np.zeros((1, 5, 4), np.float32)), "horizon is 5, .* compiled for 3"),
        (put("images", np.zeros((1, 1, 3, 4, 4), np.float32)), "views is 1, .* compiled for 2"),
        (put("images", np.zeros((1, 3, 3, 4, 4), np.float32)), "views is 3, .* compiled for 2"),
        (put("tokens", np.zeros((1, 64), np.float32)), "tokens: expected integers, got float32"),
        (put("tokens", np.zeros((1, 64), np.bool_)), "tokens: expected integers, got bool"),
        (put("token_mask", np.ones((1, 64), np.int64)), "token_mask: expected bool, got int64"),
        (put("image_mask", np.ones((1, 2), np.float32)), "image_mask: expected bool"),
        (put("token_mask", np.zeros((1, 64), np.bool_)), "sample 0 has no valid prompt token"),
        (poison("tokens", (0, 5), 512), r"tokens\[0, 5\] is 512, expected 0 to 511"),
        (poison("tokens", (0, 5), -1), r"tokens\[0, 5\] is -1, expected 0 to 511"),
        (poison("noise", (0, 1, 2), np.nan), r"noise\[0, 1, 2\] is nan, expected finite"),
        (poison("images", (0, 1, 2, 3, 0), np.inf), r"images\[0, 1, 2, 3, 0\] is inf"),
    ],
)
def test_a_mistake_is_named(change: Callable[[dict[str, Array]], None], message: str) -> None:
    """case 27 (views), case 24 (width)"""
    given = tensors()
    change(given)
    with pytest.raises(InputError, match=message):
        SIGNATURE.check_inputs(given)


@pytest.mark.parametrize("batch", [0, 3, 5])
def test_a_batch_without_a_bucket_lists_the_buckets(batch: int) -> None:
    """case 27, case 74: refused before launch, never captured on the way."""
    message = f"batch: {batch} samples given; this bundle was compiled for batch 1, 2"
    with pytest.raises(InputError, match=message):
        SIGNATURE.check_inputs(tensors(batch))


def test_tensors_that_disagree_about_the_batch() -> None:
    with pytest.raises(InputError, match=r"disagree about the number of samples: .*'noise': 2"):
        SIGNATURE.check_inputs({**tensors(1), "noise": tensors(2)["noise"]})


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (("action",), "'action' asked for; known: actions, lang_emb, hidden, doubled"),
        ((), "none asked for; known: actions"),
        ("actions", r"write \('actions',\)"),
    ],
)
def test_unknown_outputs_list_the_known(outputs: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SIGNATURE.check_outputs(outputs)


def test_the_smallest_bucket_that_holds_all_samples() -> None:
    signature = replace(Signature.of(graph(1), BUCKETS), buckets=(1, 4, 8))
    assert [signature.bucket_for(count) for count in (1, 2, 4, 5, 8)] == [1, 4, 4, 8, 8]
    with pytest.raises(InputError, match="9 given; .* batch 1, 4, 8"):
        signature.bucket_for(9)
    with pytest.raises(InputError, match="none given"):
        signature.bucket_for(0)
