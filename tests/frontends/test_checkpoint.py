"""Checkpoint folders: layout, configuration, and which weight files are read."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from policyc.compiler.ir.types import DType, TensorType
from policyc.frontends.checkpoint import Checkpoint, read_json_object
from policyc.frontends.errors import CheckpointError, FrontendError
from tests.frontends.checkpoints import Tensors, official_tensors, write_index, write_shards

CONFIG = {"action_dim": 32, "action_horizon": 10, "paligemma_variant": "gemma_2b"}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def tensors() -> Tensors:
    generator = np.random.default_rng(2)
    return {name: generator.normal(size=(4, 3)).astype(np.float32) for name in "abcd"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration and no weights."""
    place = tmp_path / "checkpoint"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    return place


def shards(tensors: Tensors) -> dict[str, Tensors]:
    return {
        FIRST: {name: tensors[name] for name in "ab"},
        SECOND: {name: tensors[name] for name in "cd"},
    }


def refused(folder: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        Checkpoint.open(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("fixture", "layout", "dtype"),
    [
        ("pi05_fp32/openpi", "openpi", DType.F32),
        ("pi05_bf16/openpi", "openpi", DType.BF16),
        ("pi05_lerobot/lerobot", "lerobot", DType.F32),
    ],
)
def test_official_checkpoints(oracles: Path, fixture: str, layout: str, dtype: DType) -> None:
    checkpoint = Checkpoint.open(oracles / fixture)
    expected = official_tensors(oracles, fixture)
    assert checkpoint.layout == layout and checkpoint.notes == ()
    assert list(checkpoint.tensors) == sorted(expected)
    for name, array in expected.items():
        assert checkpoint.read(name).tobytes() == array.tobytes()
    name = next(name for name in expected if name.endswith("action_in_proj.weight"))
    assert checkpoint.tensors[name] == TensorType(dtype, (64, 32))
    content = (oracles / fixture / "model.safetensors").read_bytes()
    digests = checkpoint.file_digests()
    assert set(digests) == {"config.json", "model.safetensors"}
    assert digests["model.safetensors"] == hashlib.sha256(content).hexdigest()


def test_a_sharded_checkpoint(small_policy: Path) -> None:
    checkpoint = Checkpoint.open(small_policy / "openpi")
    assert len(checkpoint.tensors) == 164
    index = "model.safetensors.index.json"
    assert set(checkpoint.file_digests()) == {"config.json", index, FIRST, SECOND}


def test_single_file_and_shards_that_agree(folder: Path, tensors: Tensors) -> None:
    """case 3: one rule, said in a note; a stray file is never read."""
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    write_shards(folder, shards(tensors))
    (folder / "model-int4.safetensors").write_bytes(b"not even a header")
    checkpoint = Checkpoint.open(folder)
    assert list(checkpoint.file_digests()) == ["config.json", "model.safetensors"]
    used, stray = checkpoint.notes
    assert "hold the same tensors; model.safetensors is used" in used
    assert stray == "Not read, as no index names them: model-int4.safetensors."


@pytest.mark.parametrize("change", ["value", "type", "shape", "name"])
def test_single_file_and_shards_that_disagree(folder: Path, tensors: Tensors, change: str) -> None:
    """case 3: disagreement is an error that names the tensor."""
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    other = dict(tensors)
    other["d"] = {
        "value": tensors["d"] + 1,
        "type": tensors["d"].astype(np.float64),
        "shape": tensors["d"].reshape(3, 4),
        "name": tensors["d"],
    }[change]
    parts = shards(other)
    if change == "name":
        parts[SECOND]["e"] = parts[SECOND].pop("d")
        refused(folder_with(folder, parts), "2 tensors are in only one of them: d, e")
    else:
        refused(folder_with(folder, parts), "disagree: 1 tensors differ: d. Remove the set")


def folder_with(folder: Path, parts: dict[str, Tensors]) -> Path:
    write_shards(folder, parts)
    return folder


def test_missing_shards_are_all_named(folder: Path, tensors: Tensors) -> None:
    """case 4: one shard missing, then every shard."""
    write_shards(folder, shards(tensors))
    (folder / SECOND).unlink()
    refused(folder, f"1 of 2 files that it names are missing: {SECOND}")
    (folder / FIRST).unlink()
    refused(folder, f"2 of 2 files that it names are missing: {FIRST}, {SECOND}")


def test_a_damaged_shard_is_named(folder: Path, tensors: Tensors) -> None:
    """case 5: the message says which of several files is cut short."""
    write_shards(folder, shards(tensors))
    content = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(content[:-1])
    refused(folder, rf"{SECOND}: cut short: expected {len(content)} bytes")


@pytest.mark.parametrize(
    ("content", "match"),
    [(b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"), (None, "16 surplus")],
)
def test_weights_that_are_not_weights(
    folder: Path, tensors: Tensors, content: bytes | None, match: str
) -> None:
    """case 6 and case 8: the reader's words reach the user as a frontend error."""
    path = folder / "model.safetensors"
    safetensors.numpy.save_file(tensors, path)
    path.write_bytes(path.read_bytes() + bytes(16) if content is None else content)
    refused(folder, match)


def test_index_and_shards_that_do_not_belong_together(folder: Path, tensors: Tensors) -> None:
    write_shards(folder, shards(tensors))
    names = {"a": FIRST, "b": FIRST, "c": FIRST, "e": SECOND}
    write_index(folder, names)
    refused(folder, "2 tensors named by the index but not in their file: c, e")
    refused(folder, "1 tensors in a file but not named by the index: d")
    write_shards(folder, {FIRST: tensors, SECOND: {"a": tensors["a"]}})
    refused(folder, rf"1 tensors in more than one file: a \({FIRST}, {SECOND}\)")


@pytest.mark.parametrize("name", ["../stolen.safetensors", "/etc/passwd", "a\\b", "", "x/../../y"])
def test_shard_names_stay_inside(folder: Path, name: str) -> None:
    write_index(folder, {"a": name})
    refused(folder, "must be a path inside the folder")


def test_links_stay_inside(folder: Path, tensors: Tensors, tmp_path: Path) -> None:
    outside = tmp_path / "outside.safetensors"
    safetensors.numpy.save_file(tensors, outside)
    (folder / "model.safetensors").symlink_to(outside)
    refused(folder, "'model.safetensors' is a link out of the folder")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    refused(folder, "config.json.*(cannot be followed|cannot be read)")


def test_the_hub_cache_is_made_of_links(folder: Path, tensors: Tensors, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "0a1b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    safetensors.numpy.save_file(tensors, blobs / "11")
    shutil.copy(folder / "config.json", blobs / "22")
    (snapshot / "model.safetensors").symlink_to("../../blobs/11")
    (snapshot / "config.json").symlink_to("../../blobs/22")
    checkpoint = Checkpoint.open(snapshot)
    np.testing.assert_array_equal(checkpoint.read("a"), tensors["a"])
    assert set(checkpoint.file_digests()) == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{not json", "not valid JSON"),
        ("[1, 2]", "expected a JSON object, got list"),
        ('{"action_dim": 1, "action_dim": 2}', "'action_dim' occurs twice"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_configurations_that_cannot_be_read(folder: Path, text: str, match: str) -> None:
    (folder / "config.json").write_text(text)
    refused(folder, match)


def test_no_configuration_and_no_folder(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, "config.json: cannot be read: No such file")
    refused(folder / "absent", "not a folder")


def test_a_huge_json_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(FrontendError, match="1000000000 bytes; the limit is"):
        read_json_object(tmp_path / "config.json")


def test_a_configuration_without_type(oracles: Path, tmp_path: Path) -> None:
    """case 11: inferred from the other keys, and said so; else the supported ones are listed."""
    folder = tmp_path / "copy"
    shutil.copytree(oracles / "pi05_lerobot" / "lerobot", folder)
    config = json.loads((folder / "config.json").read_text())
    del config["type"]
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.layout == "lerobot"
    assert "no 'type'; taken for a LeRobot configuration" in checkpoint.notes[0]


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"width": 3}, "none of them"),
        ({"type": "pi05", "action_horizon": 10}, "type, action_horizon"),
        ({"chunk_size": 1, "action_horizon": 10}, "action_horizon, chunk_size"),
    ],
)
def test_an_unclear_layout(folder: Path, config: dict[str, object], found: str) -> None:
    """case 11: the message lists what was looked for and what is supported."""
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, rf"(?s)Looked for 'type'.*found {found}.*Supported: openpi PyTorch")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("params", "openpi JAX checkpoint; convert"),
        ("adapter_model.safetensors", "LoRA adapter; merge"),
        ("pytorch_model.bin", "pickled weights"),
        ("other.safetensors", "There are other.safetensors, which no index names"),
        ("notes.txt", "Download the checkpoint again"),
    ],
)
def test_folders_without_weights(folder: Path, name: str, match: str) -> None:
    (folder / name).write_text("")
    refused(folder, f"no weights; looked for model.safetensors.*{match}")


def test_tensors_that_cannot_be_had(folder: Path, tensors: Tensors) -> None:
    path = folder / "model.safetensors"
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(CheckpointError, match="no tensor 'x'; the checkpoint has 4: a, b, c, d"):
        Checkpoint.open(folder).read("x")
    safetensors.numpy.save_file({"a": np.ones(2, np.float16)}, path)
    refused(folder, "tensor 'a' is F16, which is not supported; expected F32 or BF16")
    safetensors.numpy.save_file({}, path)
    refused(folder, "hold no tensor")


def test_long_tensors_are_compared_to_the_end(folder: Path) -> None:
    values = np.zeros(17 * 1024 * 1024, np.uint8)
    other = values.copy()
    other[-1] = 1
    safetensors.numpy.save_file(
        {"a": values, "b": other, "c": values}, folder / "model.safetensors"
    )
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.same_bytes("a", "c") and not checkpoint.same_bytes("a", "b")
