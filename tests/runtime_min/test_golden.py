from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler.ir.types import Array
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.errors import BundleError
from policyc.runtime_min.golden import check_golden, compare, pictures_as_floats, read_golden
from policyc.runtime_min.manifest import Tolerance, manifest_text
from policyc.runtime_min.policy import Policy
from tests.runtime_min.bundles import manifest_of

LIMIT = Tolerance(max_abs=0.1, relative_l2=0.01, origin="test")
ONES = np.ones((2, 50), np.float32)


def test_a_sound_bundle_passes(bundle_folder: Path) -> None:
    with Policy.load(bundle_folder, "cpu") as policy:
        report = check_golden(policy)
    assert report.passed
    assert report.first_failure is None
    assert [item.name for item in report.comparisons] == ["lang_emb", "hidden", "actions"]
    assert all(item.cosine == pytest.approx(1.0) for item in report.comparisons)


def test_a_broken_policy_fails_at_the_first_wrong_value(bundle_folder: Path) -> None:
    """The null device computes nothing: every value is NaN."""
    with Policy.load(bundle_folder, "null") as policy:
        report = check_golden(policy)
    assert not report.passed
    assert report.first_failure is not None
    assert report.first_failure.name == "lang_emb"
    assert "lang_emb: FAIL, max abs nan" in str(report.first_failure)


@pytest.mark.parametrize(
    ("result", "passed"),
    [
        (ONES, True),
        (ONES * np.float32(1.005), True),
        (ONES * np.float32(1.02), False),
        (-ONES, False),
        (ONES * np.nan, False),
        (ONES * np.inf, False),
    ],
)
def test_both_limits_decide(result: Array, passed: bool) -> None:
    assert compare("x", result, ONES, LIMIT).passed is passed


def test_one_large_error_fails_although_the_norm_is_small() -> None:
    result = ONES.copy()
    result[0, 0] = 1.2
    wide = replace(LIMIT, relative_l2=1.0)
    comparison = compare("x", result, ONES, wide)
    assert comparison.max_abs_error == pytest.approx(0.2)
    assert not comparison.passed


def test_a_golden_vector_of_zeros() -> None:
    zeros = np.zeros(4, np.float32)
    assert compare("x", zeros, zeros, LIMIT).passed
    assert not compare("x", zeros + np.float32(0.05), zeros, LIMIT).passed


def test_shapes_must_agree() -> None:
    with pytest.raises(BundleError, match=r"out/x has shape \(2, 50\), the policy gives \(4,\)"):
        compare("x", np.zeros(4, np.float32), ONES, LIMIT)


def test_pictures_are_scaled_in_float32() -> None:
    pictures = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 1, 16, 16, 3)
    floats = pictures_as_floats(pictures)
    assert floats.shape == (1, 1, 3, 16, 16)
    expected = np.arange(256, dtype=np.float32) / np.float32(255) * np.float32(2) - np.float32(1)
    np.testing.assert_array_equal(floats[0, 0, 1].ravel(), expected)
    with pytest.raises(BundleError, match="expected uint8"):
        pictures_as_floats(floats)


def test_limits_and_vectors_belong_together(bundle_folder: Path) -> None:
    manifest = manifest_of(bundle_folder)
    fewer = {"actions": manifest.tolerances["actions"]}
    text = manifest_text(replace(manifest, tolerances=fewer))
    (bundle_folder / "manifest.json").write_text(text)
    with (
        Policy.load(bundle_folder, "cpu") as policy,
        pytest.raises(BundleError, match=r"limits \['actions'\] differ"),
    ):
        check_golden(policy)


def test_a_bundle_without_golden_vectors(bundle_folder: Path) -> None:
    (bundle_folder / "golden.safetensors").unlink()
    (bundle_folder / "manifest.json").write_text(manifest_text(manifest_of(bundle_folder)))
    with pytest.raises(BundleError, match=r"has no golden\.safetensors"):
        read_golden(Bundle.open(bundle_folder))
