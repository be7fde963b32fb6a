from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler.cli import archives
from policyc.compiler.cli.archives import (
    ArchiveError,
    read_arrays,
    read_observation,
    write_arrays,
)


def test_an_observation_is_read_as_the_policy_takes_it(observation_file: Path) -> None:
    given = read_observation(observation_file)
    assert given.observation["prompt"] == "pick up the cup"
    assert set(given.observation["images"]) == {"front", "wrist"}  # type: ignore[call-overload]
    assert given.noise is not None and given.noise.shape == (3, 4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"annotation": np.zeros(1)}, "unknown array 'annotation'.*images.<camera>, state, prompt"),
        ({"prompt": np.array(["a", "b"])}, "prompt is <U1 .*expected one text"),
        ({"prompt": np.zeros(())}, "prompt is float64"),
    ],
)
def test_other_keys_are_refused(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    np.savez(tmp_path / "o.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(ArchiveError, match=message):
        read_observation(tmp_path / "o.npz")


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", state=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ArchiveError, match=r"plain arrays.*allow_pickle"):
        read_observation(tmp_path / "o.npz")


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04 cut"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "o.npz").write_bytes(data)
    with pytest.raises(ArchiveError, match="not an .npz archive"):
        read_arrays(tmp_path / "o.npz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="absent.npz: no such file"):
        read_arrays(tmp_path / "absent.npz")


def test_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST_ARCHIVE_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "o.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("state.npy", bytes(2000))
    with pytest.raises(ArchiveError, match="2000 bytes unpacked, expected at most 1000"):
        read_arrays(tmp_path / "o.npz")


def test_arrays_are_written_whole(tmp_path: Path) -> None:
    arrays = {"actions": np.arange(6.0).reshape(3, 2), "names": np.array(["x", "y"])}
    write_arrays(tmp_path / "a.npz", arrays)
    read = read_arrays(tmp_path / "a.npz")
    assert np.array_equal(read["actions"], arrays["actions"]) and list(read["names"]) == ["x", "y"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", {"actions": np.ones(1)})
    with pytest.raises(ValueError, match="allow_pickle"):
        write_arrays(tmp_path / "a.npz", {"actions": np.array([{}], dtype=object)})
    assert read_arrays(tmp_path / "a.npz")["actions"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
