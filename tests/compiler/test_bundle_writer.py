from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler import bundle_writer
from policyc.compiler.bundle_writer import BundleContents, write_bundle
from policyc.compiler.golden import GoldenVectors
from policyc.compiler.ir.types import Array
from policyc.compiler.materialise import PackedWeights
from policyc.compiler.options import OptionError
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.manifest import Tolerance
from tests.runtime_min.bundles import expected, graph, tensors, weights


def contents(**changes: object) -> BundleContents:
    """The small policy of the runtime's tests, for the CPU, without processing description."""
    stored = {f"@{name}": array for name, array in weights().items()}
    fields: dict[str, object] = {
        "policy": "toy",
        "precision": "float32",
        "targets": (),
        "options": {"batch_buckets": [1]},
        "provenance": {},
        "notice": "Made for a test.\n",
        "graphs": {1: graph(1)},
        "plans": {},
        "cubins": {},
        "weights": PackedWeights(
            values=graph(1).weights, blocks=lambda name: iter((stored[name][:1], stored[name][1:]))
        ),
        "processing": {"format": 1},
        "processing_files": {},
        "golden": golden,
    }
    return BundleContents(**(fields | changes))  # type: ignore[arg-type]


def golden() -> GoldenVectors:
    inputs = {f"in/{name}": array for name, array in tensors().items()}
    inputs["in/tokens"] = inputs["in/tokens"].astype(np.int32)
    actions = expected(tensors())["actions"]
    limit = Tolerance(max_abs=1e-5, relative_l2=1e-5, origin="a test")
    return GoldenVectors(tensors={**inputs, "out/actions": actions}, tolerances={"actions": limit})


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_every_digest_fits_and_weights_are_aligned(tmp_path: Path) -> None:
    """Case 9: whatever the sizes, weights start at multiples of 256 bytes."""
    output = tmp_path / "new" / "a.policy"
    write_bundle(output, contents())
    bundle = Bundle.open(output, "all")
    assert set(bundle.manifest.weights) == {"table", "w"}
    assert all(entry.offset % 256 == 0 for entry in bundle.manifest.weights.values())
    assert (output / "NOTICE").read_text() == "Made for a test.\n"
    np.testing.assert_array_equal(bundle.map_weight("w"), weights()["w"])


def test_same_bytes_whatever_the_order_of_mappings(tmp_path: Path) -> None:
    """Case 52."""
    write_bundle(tmp_path / "a.policy", contents(options={"batch_buckets": [1], "views": 2}))
    write_bundle(tmp_path / "b.policy", contents(options={"views": 2, "batch_buckets": [1]}))
    assert tree(tmp_path / "a.policy") == tree(tmp_path / "b.policy")


def test_weights_are_split_over_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_writer, "WEIGHT_FILE_BYTES", 100)
    write_bundle(tmp_path / "a.policy", contents())
    names = {name for name in tree(tmp_path / "a.policy") if name.startswith("weights-")}
    assert names == {"weights-00001.safetensors", "weights-00002.safetensors"}
    np.testing.assert_array_equal(
        Bundle.open(tmp_path / "a.policy", "all").map_weight("w"), weights()["w"]
    )


def test_an_older_bundle_is_replaced(tmp_path: Path) -> None:
    output = tmp_path / "a.policy"
    write_bundle(output, contents(notice="old\n", cubins={"kernels/90/old.cubin": b"old"}))
    write_bundle(output, contents(notice="new\n"))
    assert (output / "NOTICE").read_text() == "new\n" and not (output / "kernels").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a.policy"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_anything_else_is_left_alone(tmp_path: Path, kind: str) -> None:
    output = tmp_path / "precious"
    if kind == "folder":
        output.mkdir()
    else:
        output.write_text("text")
    with pytest.raises(OptionError, match="precious exists and is not a bundle; it is left alone"):
        write_bundle(output, contents())
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def failing(name: str) -> Iterator[Array]:
    raise OSError(errno.ENOSPC, "No space left on device", name)


def test_a_full_disk_leaves_the_older_bundle(tmp_path: Path) -> None:
    output = tmp_path / "a.policy"
    write_bundle(output, contents())
    before = tree(output)
    hollow = PackedWeights(values=graph(1).weights, blocks=failing)
    with pytest.raises(OSError, match="No space left"):
        write_bundle(output, contents(weights=hollow))
    assert tree(output) == before and [path.name for path in tmp_path.iterdir()] == ["a.policy"]


def test_a_rename_that_fails_leaves_the_older_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "a.policy"
    write_bundle(output, contents())
    before = tree(output)
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(errno.EIO, "Input/output error", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="Input/output"):
        write_bundle(output, contents(notice="new\n"))
    assert tree(output) == before and [path.name for path in tmp_path.iterdir()] == ["a.policy"]


MOMENTS = ("first file", "golden vectors", "weights", "manifest", "rename")


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_half(path: Path, *_: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    die()


def write_and_die(output: Path, moment: str) -> None:
    """In a process of its own: ends at the moment named."""
    made = contents()
    if moment == "weights":
        made = contents(weights=PackedWeights(values=made.weights.values, blocks=die))  # type: ignore[arg-type]
    name, action = {
        "first file": ("_write", write_half),
        "golden vectors": ("_write_golden", write_half),
        "weights": ("WEIGHT_FILE_BYTES", bundle_writer.WEIGHT_FILE_BYTES),
        "manifest": ("manifest_text", die),
        "rename": ("_put_in_place", die),
    }[moment]
    setattr(bundle_writer, name, action)
    write_bundle(output, made)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_writing(tmp_path: Path, moment: str) -> None:
    """Nothing under the final name; the next compile works beside what was left."""
    output = tmp_path / "a.policy"
    child = os.fork()
    if child == 0:
        try:
            write_and_die(output, moment)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    (left,) = (path.name for path in tmp_path.iterdir())
    assert left.startswith(".a.policy.") and left.endswith(".partial")
    write_bundle(output, contents())
    Bundle.open(output, "all")
