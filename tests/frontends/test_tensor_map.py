"""The engine that binds a checkpoint to a map, on a map of two layers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from policyc.compiler.ir.types import Array
from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.errors import CheckpointError
from policyc.frontends.tensor_map import Binding, Kind, Refusal, Row, TensorMap, Tie, bind

TOY = TensorMap(
    policy="toy",
    rows=(
        Row(name="body.table.weight", shape=("words", "body.width")),
        Row(name="body.layers.{body.layers}.in.weight", shape=("body.inner", "body.width")),
        Row(name="body.layers.{body.layers}.out.weight", shape=("body.width", "body.inner")),
        Row(name="body.layers.{body.layers}.gain", shape=("body.width",), kind=Kind.OPTIONAL),
        Row(name="tail.layers.{tail.layers}.mix.weight", shape=("3*tail.width", "2")),
        Row(name="unused.weight", kind=Kind.UNUSED),
    ),
    prefixes=("model.",),
    renames=(("trunk.", "body."),),
    ties=(Tie(name="body.table.weight", stand_in="head.weight", must_agree=("openpi",)),),
    refusals=(Refusal(pattern=r"(^|\.)lora_[ab]$", message="Merge the adapters."),),
    equal=(("body.layers", "tail.layers"),),
)


def toy_tensors() -> dict[str, Array]:
    shapes = {"body.table.weight": (7, 4), "unused.weight": (9,)}
    for layer in range(2):
        shapes[f"body.layers.{layer}.in.weight"] = (6, 4)
        shapes[f"body.layers.{layer}.out.weight"] = (4, 6)
        shapes[f"tail.layers.{layer}.mix.weight"] = (15, 2)
    return {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}


def bound(folder: Path, tensors: dict[str, Array], layout: str = "openpi") -> Binding:
    config = {"action_horizon": 1} if layout == "openpi" else {"type": "toy"}
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return bind(Checkpoint.open(folder), TOY)


def refused(folder: Path, tensors: dict[str, Array], match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        bound(folder, tensors)
    assert str(folder) in str(caught.value)


def test_dimensions_names_and_notes(tmp_path: Path) -> None:
    tensors = toy_tensors()
    binding = bound(tmp_path, tensors)
    assert binding.dims == {
        "body.layers": 2,
        "tail.layers": 2,
        "words": 7,
        "body.width": 4,
        "body.inner": 6,
        "tail.width": 5,
    }
    assert binding.unused == ("unused.weight",)
    assert binding.tensors == {name: name for name in tensors if name != "unused.weight"}
    assert binding.notes == ()


def test_optional_tensors_are_bound_where_they_are(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors["body.layers.1.gain"] = np.ones(4, np.float32)
    assert "body.layers.1.gain" in bound(tmp_path, tensors).tensors
    tensors["body.layers.1.gain"] = np.ones(5, np.float32)
    refused(tmp_path, tensors, "body.layers.1.gain.* is 5, expected body.width = 4")


def test_a_prefix_on_every_name_is_left_out(tmp_path: Path) -> None:
    """case 2: with and without a leading `model.`."""
    plain = bound(tmp_path, toy_tensors())
    prefixed = bound(tmp_path, {f"model.{name}": a for name, a in toy_tensors().items()})
    assert prefixed.dims == plain.dims
    assert prefixed.tensors == {name: f"model.{name}" for name in plain.tensors}
    assert prefixed.notes == ("Tensor names carry the prefix 'model.'; it is left out.",)


def test_half_a_prefix_is_refused(tmp_path: Path) -> None:
    """case 2: half-and-half, with counts and first names."""
    tensors = toy_tensors()
    tensors["model.unused.weight"] = tensors.pop("unused.weight")
    match = r"1 with the prefix 'model.' \(model.unused.weight\), 7 without it \(body.layers"
    refused(tmp_path, tensors, match)


def test_older_paths_are_renamed_but_not_mixed(tmp_path: Path) -> None:
    """case 2: older module paths, pure and mixed."""
    plain = bound(tmp_path, toy_tensors())
    old = {name.replace("body.", "trunk."): a for name, a in toy_tensors().items()}
    renamed = bound(tmp_path, old)
    assert renamed.tensors["body.layers.0.in.weight"] == "trunk.layers.0.in.weight"
    assert renamed.dims == plain.dims and list(renamed.tensors) == list(plain.tensors)
    assert renamed.notes == ("5 tensors carry older module paths; they are renamed.",)
    old["body.layers.0.in.weight"] = old.pop("trunk.layers.0.in.weight")
    refused(tmp_path, old, r"4 under older module paths .*, 1 under present ones \(body.layers.0")


def test_a_tied_partner_stands_in(tmp_path: Path) -> None:
    """case 1: stored under the partner's name only, and under neither."""
    tensors = toy_tensors()
    tensors["head.weight"] = tensors.pop("body.table.weight")
    binding = bound(tmp_path, tensors)
    assert binding.tensors["body.table.weight"] == "head.weight"
    assert binding.notes == (
        "'body.table.weight' is not in the files; its tied partner 'head.weight' is used.",
    )
    del tensors["head.weight"]
    refused(tmp_path, tensors, "neither 'body.table.weight' nor 'head.weight'")


def test_both_tied_tensors(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors["head.weight"] = tensors["body.table.weight"].copy()
    binding = bound(tmp_path, tensors)
    assert binding.tensors["body.table.weight"] == "body.table.weight"
    assert binding.unused == ("head.weight", "unused.weight")
    tensors["head.weight"][3, 2] += 1
    refused(tmp_path, tensors, "one tied tensor in the openpi layout, but their values differ")
    lerobot = bound(tmp_path, tensors, layout="lerobot")
    assert lerobot.tensors["body.table.weight"] == "body.table.weight"
    assert "'body.table.weight' is used" in lerobot.notes[0]


def test_refusals_come_before_everything_else(tmp_path: Path) -> None:
    tensors = {"model.body.lora_a": np.ones(2, np.float32)}
    refused(tmp_path, tensors, r"Merge the adapters. Found 1 such tensors: body.lora_a")


def test_missing_and_unknown_tensors(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors["extra.weight"] = tensors.pop("body.layers.1.in.weight")
    match = (
        "1 of 7 missing: body.layers.1.in.weight; "
        "1 that the policy does not know: extra.weight. Check that this is a toy checkpoint"
    )
    refused(tmp_path, tensors, match)


def test_a_policy_without_layers_misses_the_first(tmp_path: Path) -> None:
    tensors = {name: a for name, a in toy_tensors().items() if ".layers." not in name}
    refused(tmp_path, tensors, "3 of 4 missing: body.layers.0.in.weight")


@pytest.mark.parametrize("index", ["2", "999999999"])
def test_layers_run_from_zero_without_a_gap(tmp_path: Path, index: str) -> None:
    tensors = toy_tensors()
    for name in ("in.weight", "out.weight"):
        tensors[f"body.layers.{index}.{name}"] = tensors.pop(f"body.layers.1.{name}")
    refused(tmp_path, tensors, f"body.layers: layer 1 is missing, but layer {index} is there")


@pytest.mark.parametrize("index", ["01", "-1", "x", "9999999999"])
def test_odd_layer_numbers_are_unknown_names(tmp_path: Path, index: str) -> None:
    tensors = toy_tensors()
    tensors[f"body.layers.{index}.in.weight"] = np.ones((6, 4), np.float32)
    refused(tmp_path, tensors, f"does not know: body.layers.{index}.in.weight")


def test_depths_that_must_be_equal(tmp_path: Path) -> None:
    tensors = toy_tensors()
    del tensors["tail.layers.1.mix.weight"]
    refused(tmp_path, tensors, "body.layers is 2 but tail.layers is 1")


@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [
        (
            "body.layers.1.out.weight",
            (4, 8),
            r"axis 1 of 'body.layers.1.out.weight' f32\[4,8\] is 8, expected body.inner = 6 "
            r"\(body.inner is 6 by axis 0 of 'body.layers.0.in.weight' f32\[6,4\]\)",
        ),
        ("tail.layers.1.mix.weight", (18, 2), r"is 18, expected 3\*tail.width = 15"),
        ("tail.layers.0.mix.weight", (16, 2), "is 16, expected a multiple of 3"),
        ("tail.layers.0.mix.weight", (15, 3), "is 3, expected 2. The"),
        ("body.table.weight", (7, 4, 1), r"expected a shape \[words, body.width\], no size 0"),
        ("body.table.weight", (0, 4), "no size 0"),
    ],
)
def test_shapes_that_do_not_fit(
    tmp_path: Path, name: str, shape: tuple[int, ...], match: str
) -> None:
    tensors = toy_tensors()
    tensors[name] = np.ones(shape, np.float32)
    refused(tmp_path, tensors, match)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors["body.table.weight"] = np.ones((7, 4), np.uint8)
    refused(tmp_path, tensors, "expected floating point values. Quantised checkpoints")


def test_a_name_of_two_rows_is_a_fault_of_the_map(tmp_path: Path) -> None:
    bound(tmp_path, toy_tensors())
    twice = replace(TOY, rows=(*TOY.rows, TOY.rows[0]))
    with pytest.raises(AssertionError, match="two rows of the map describe body.table.weight"):
        bind(Checkpoint.open(tmp_path), twice)
