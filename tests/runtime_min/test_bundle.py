from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.errors import BundleError, BundleVersionError, PlanError
from policyc.runtime_min.manifest import manifest_text
from tests.runtime_min.bundles import graph, manifest_of, plan, replace_file, weights

WEIGHTS = "weights-00001.safetensors"


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_everything_reads_back(bundle_folder: Path) -> None:
    bundle = Bundle.open(bundle_folder, "all")
    assert bundle.graph(2) == graph(2)
    assert bundle.plan(90) == plan()
    for name, array in weights().items():
        np.testing.assert_array_equal(bundle.map_weight(name), array)
        assert not bundle.map_weight(name).flags.writeable


def test_a_read_only_bundle_opens_and_nothing_is_written(bundle_folder: Path) -> None:
    """case 70"""
    before = {path: path.stat().st_mtime_ns for path in bundle_folder.rglob("*")}
    for path in bundle_folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    Bundle.open(bundle_folder, "all").graph(1)
    assert {path: path.stat().st_mtime_ns for path in bundle_folder.rglob("*")} == before


@pytest.mark.parametrize("content", [None, "file"])
def test_no_bundle(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "arm.policy"
    if content:
        path.write_text(content)
    with pytest.raises(BundleError, match="no such bundle|is a folder"):
        Bundle.open(path)


def test_a_half_written_bundle(bundle_folder: Path) -> None:
    (bundle_folder / "manifest.json").unlink()
    with pytest.raises(BundleError, match=r"no manifest\.json: not a bundle, or a half-written"):
        Bundle.open(bundle_folder)


def test_missing_and_cut_files_are_listed_together(bundle_folder: Path) -> None:
    (bundle_folder / "graph/1.ir").unlink()
    weights_path = bundle_folder / WEIGHTS
    size = weights_path.stat().st_size
    os.truncate(weights_path, size - 1)
    message = rf"graph/1\.ir is missing; {WEIGHTS} has {size - 1} bytes, expected {size}"
    with pytest.raises(BundleError, match=message):
        Bundle.open(bundle_folder)


def test_a_changed_small_file_is_found_at_load(bundle_folder: Path) -> None:
    flip_last_byte(bundle_folder / "plan/90.json")
    with pytest.raises(BundleError, match=r"plan/90\.json: SHA-256 is"):
        Bundle.open(bundle_folder)


def test_changed_weights_are_found_by_verify(
    bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policyc.runtime_min.bundle._SMALL_FILE_BYTES", 1000)
    flip_last_byte(bundle_folder / WEIGHTS)
    bundle = Bundle.open(bundle_folder)
    with pytest.raises(BundleError, match=f"{WEIGHTS}: SHA-256"):
        bundle.verify()
    with pytest.raises(BundleError, match=f"{WEIGHTS}: SHA-256"):
        Bundle.open(bundle_folder, "all")


def test_an_index_that_does_not_match_the_file(bundle_folder: Path) -> None:
    tree = json.loads(manifest_text(manifest_of(bundle_folder)))
    tree["weights"]["w"]["shape"] = [2, 8]
    (bundle_folder / "manifest.json").write_text(json.dumps(tree))
    with pytest.raises(BundleError, match="weight 'w' is .* the manifest has"):
        Bundle.open(bundle_folder).verify()


def test_a_link_out_of_the_folder(bundle_folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.move(bundle_folder / "graph/1.ir", outside)
    (bundle_folder / "graph/1.ir").symlink_to(outside)
    with pytest.raises(BundleError, match="leads out of the bundle by a symbolic link"):
        Bundle.open(bundle_folder)


def test_files_that_the_manifest_does_not_list_are_ignored(bundle_folder: Path) -> None:
    (bundle_folder / "weights-00002.safetensors").write_text("stray")
    bundle = Bundle.open(bundle_folder, "all")
    with pytest.raises(BundleError, match=r"no file 'weights-00002\.safetensors' in the manifest"):
        bundle.read("weights-00002.safetensors")


def test_promised_buckets_have_their_files(bundle_folder: Path) -> None:
    (bundle_folder / "graph/2.ir").unlink()
    (bundle_folder / "manifest.json").write_text(manifest_text(manifest_of(bundle_folder)))
    with pytest.raises(BundleError, match=r"does not list: graph/2\.ir"):
        Bundle.open(bundle_folder)


def test_a_newer_bundle(bundle_folder: Path) -> None:
    """case 69"""
    tree = json.loads((bundle_folder / "manifest.json").read_text())
    tree["format"]["version"] = 2
    (bundle_folder / "manifest.json").write_text(json.dumps(tree))
    with pytest.raises(BundleVersionError, match="Upgrade policyc on this machine"):
        Bundle.open(bundle_folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"weight": "table"', '"weight": "tables"', "weight 'tables' is not in the manifest"),
        ('"kernels/90/embed_rows', '"kernels/90/other', "'kernels/90/other.cubin' is not in"),
        ('"compute_capability": 90', '"compute_capability": 80', "is for compute capability 80"),
        ('"2": {', '"3": {', r"\[1, 3\], the manifest has \[1, 2\]"),
    ],
)
def test_a_plan_that_does_not_belong_to_the_bundle(
    bundle_folder: Path, old: str, new: str, message: str
) -> None:
    text = (bundle_folder / "plan/90.json").read_text()
    assert old in text
    replace_file(bundle_folder, "plan/90.json", text.replace(old, new).encode())
    with pytest.raises(PlanError, match=message):
        Bundle.open(bundle_folder).plan(90)


def test_a_weight_offset_beyond_its_end(bundle_folder: Path) -> None:
    tree = json.loads((bundle_folder / "plan/90.json").read_text())
    tree["buckets"]["1"]["launches"][0]["args"][1]["offset"] = 8192
    replace_file(bundle_folder, "plan/90.json", json.dumps(tree).encode())
    with pytest.raises(PlanError, match="reads to byte 8193 of weight 'table', which has 8192"):
        Bundle.open(bundle_folder).plan(90)


def test_a_graph_that_does_not_parse(bundle_folder: Path) -> None:
    replace_file(bundle_folder, "graph/1.ir", b"stage ???\n")
    with pytest.raises(BundleError, match=r"graph/1\.ir: line 1"):
        Bundle.open(bundle_folder).graph(1)


def test_an_unknown_way_to_verify(bundle_folder: Path) -> None:
    with pytest.raises(BundleError, match="expected 'sizes' or 'all', got 'some'"):
        Bundle.open(bundle_folder, "some")  # type: ignore[arg-type]
