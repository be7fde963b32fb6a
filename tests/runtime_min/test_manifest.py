from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policyc.runtime_min.errors import BundleError, BundleVersionError
from policyc.runtime_min.manifest import (
    capability_text,
    is_safe_file_name,
    manifest_text,
    read_manifest,
)
from tests.runtime_min.bundles import manifest_of

WEIGHT = ("weights", "w")


def changed(folder: Path, path: tuple[str | int, ...], value: object) -> bytes:
    tree: Any = json.loads(manifest_text(manifest_of(folder)))
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return json.dumps(tree).encode()


def test_text_reads_back_equal(bundle_folder: Path) -> None:
    manifest = manifest_of(bundle_folder)
    assert read_manifest(manifest_text(manifest).encode(), "m") == manifest
    assert manifest.batch_buckets == (1, 2)
    assert manifest.compute_capabilities == (90,)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format", "version"), 2, "bundle format 2, .* 1 to 1. Upgrade policyc on this machine"),
        (("format", "version"), 0, "bundle format 0, .* Compile the bundle again with a newer"),
        (("requires",), ["int3"], "this runtime lacks int3; it has none. Upgrade policyc"),
    ],
)
def test_version_and_features_come_first(
    bundle_folder: Path, path: tuple[str | int, ...], value: object, message: str
) -> None:
    """case 69: checked before anything else, so damage elsewhere does not hide it."""
    tree = json.loads(changed(bundle_folder, path, value))
    tree["files"] = "not even an object"
    with pytest.raises(BundleVersionError, match=message):
        read_manifest(json.dumps(tree).encode(), "m")


def test_an_unknown_optional_field_is_ignored(bundle_folder: Path) -> None:
    """case 69"""
    data = changed(bundle_folder, ("colour",), "red")
    assert read_manifest(data, "m") == manifest_of(bundle_folder)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format", "name"), "other", "expected policyc.bundle, got 'other'"),
        (("files", "../x"), {"sha256": "0" * 64, "bytes": 1}, r"name '\.\./x' is refused"),
        (("files", "/etc/passwd"), {"sha256": "0" * 64, "bytes": 1}, "is refused"),
        (("files", "x"), {"sha256": "0" * 63, "bytes": 1}, "expected 64 hexadecimal digits"),
        (("files", "x"), {"sha256": "0" * 64, "bytes": -1}, "expected 0 to"),
        (("files", "x"), {"sha256": "0" * 64, "bytes": 1, "mode": 7}, "unknown keys mode"),
        (("options",), {}, "key 'batch_buckets' is missing"),
        (("options", "batch_buckets"), [2, 1], "expected ascending batch sizes"),
        (("options", "batch_buckets"), [], "expected ascending batch sizes"),
        (("targets", 0, "name"), "h20", "names repeat: h20, h20"),
        (("targets", 0, "compute_capability"), "9.0", "expected an integer, got str"),
        ((*WEIGHT, "file"), "x", "'x' is not among the files"),
        ((*WEIGHT, "dtype"), "f16", "unknown 'f16'; known: f64"),
        ((*WEIGHT, "offset"), 8, "multiple of 256, got 8"),
        ((*WEIGHT, "shape"), [2**30, 2**30], "ends at byte"),
        (("tolerances", "actions", "max_abs"), -1.0, "limits are not negative"),
    ],
)
def test_a_rule_is_enforced(
    bundle_folder: Path, path: tuple[str | int, ...], value: object, message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        read_manifest(changed(bundle_folder, path, value), "m")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("graph/1.ir", True),
        ("NOTICE", True),
        ("a/../b", False),
        ("a//b", False),
        (".hidden", False),
        ("a\\b", False),
        ("C:x", False),
        ("a/b/", False),
        ("a\n", False),
        ("", False),
    ],
)
def test_names_stay_inside_the_folder(name: str, safe: bool) -> None:
    assert is_safe_file_name(name) is safe


def test_capability_text() -> None:
    assert [capability_text(value) for value in (86, 90, 120)] == ["8.6", "9.0", "12.0"]
