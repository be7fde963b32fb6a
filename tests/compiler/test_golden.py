from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policyc.compiler.golden import LIMITS, GoldenVectors, make_golden
from policyc.compiler.ir.types import DType
from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.families import family_of
from policyc.frontends.policy import PolicyOptions, PreparedPolicy
from policyc.frontends.processing_description import ProcessingOptions


@pytest.fixture(scope="module")
def prepared(oracles: Path) -> PreparedPolicy:
    checkpoint = Checkpoint.open(oracles / "pi05_fp32" / "openpi")
    processing = ProcessingOptions(prompt_slots=16, horizon=2)
    options = PolicyOptions(processing=processing, steps=2)
    return family_of(checkpoint).prepare(checkpoint, options)


@pytest.fixture(scope="module")
def golden(prepared: PreparedPolicy) -> GoldenVectors:
    return make_golden(prepared, 1, DType.F32)


def test_inputs_every_stage_and_outputs(golden: GoldenVectors) -> None:
    inputs = {name for name in golden.tensors if name.startswith("in/")}
    assert inputs == {
        *("in/images_u8", "in/image_mask", "in/tokens", "in/token_mask", "in/noise"),
    }
    outputs = {name.removeprefix("out/") for name in golden.tensors} - inputs
    assert outputs == set(golden.tolerances)
    wanted = {"actions", "v_t", "x_t", "image_emb", "lang_emb", "suffix_emb", "k.0", "v.2"}
    assert wanted <= outputs
    assert all(np.isfinite(array).all() for array in golden.tensors.values())


def test_pictures_are_bytes_that_give_the_input_back(
    prepared: PreparedPolicy, golden: GoldenVectors
) -> None:
    stored = golden.tensors["in/images_u8"]
    assert stored.dtype == np.uint8 and stored.shape == (1, 3, 56, 56, 3)
    scaled = stored.astype(np.float32) / np.float32(255) * np.float32(2) - np.float32(1)
    expected = prepared.golden_inputs(1)["images"]
    np.testing.assert_array_equal(scaled.transpose(0, 1, 4, 2, 3), expected)


def test_limits_follow_the_precision(prepared: PreparedPolicy, golden: GoldenVectors) -> None:
    """Case 28: a bundle says what it is compared with, and how closely."""
    loose = make_golden(prepared, 1, DType.BF16)
    for name, limit in golden.tolerances.items():
        largest = np.abs(golden.tensors[f"out/{name}"]).max()
        assert limit.max_abs == pytest.approx(LIMITS[DType.F32].of_largest * largest)
        assert limit.relative_l2 < loose.tolerances[name].relative_l2
        assert limit.origin.startswith("float32") and limit.max_abs > 0
        np.testing.assert_array_equal(golden.tensors[f"out/{name}"], loose.tensors[f"out/{name}"])
    assert loose.tolerances["actions"].origin.startswith("bf16")


def test_samples_of_a_batch_differ(prepared: PreparedPolicy) -> None:
    actions = make_golden(prepared, 2, DType.F32).tensors["out/actions"]
    assert actions.shape == (2, 2, 32) and np.abs(actions[0] - actions[1]).max() > 0.1
