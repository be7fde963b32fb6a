"""Observations and actions as `.npz` files, without pickles.

An observation file has `images.<camera>` (uint8 [H, W, 3], or what `Policy.infer` takes), `state`,
`prompt` (a unicode scalar) and optionally `noise` (float32 [horizon, action width]).
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from policyc.compiler.ir.types import Array

LARGEST_ARCHIVE_BYTES = 1 << 30
_IMAGE_PREFIX = "images."


class ArchiveError(Exception):
    """A file that is not an archive of arrays, or whose arrays make no observation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservationFile:
    """An observation as `Policy.infer` takes it, and the start noise if the file has one."""

    observation: Mapping[str, object]
    noise: Array | None


def read_arrays(path: Path) -> dict[str, Array]:
    """All arrays of an `.npz` file; members that are pickles are refused.

    Raises:
        ArchiveError: missing, not an archive, too large unpacked, or with a pickle inside.
    """
    if not path.is_file():
        raise ArchiveError(f"{path}: no such file.")
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > LARGEST_ARCHIVE_BYTES:
            raise ArchiveError(
                f"{path}: {unpacked} bytes unpacked, expected at most {LARGEST_ARCHIVE_BYTES}."
            )
        with np.load(path, allow_pickle=False) as arrays:  # noqa: TID251
            return {name: arrays[name] for name in arrays.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise ArchiveError(
            f"{path}: not an .npz archive of plain arrays: {error}. Write it with numpy.savez."
        ) from error


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an `.npz` file under another name and rename it: it is there whole or not at all."""
    aside = path.with_name(path.name + ".partial")
    try:
        with aside.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def read_observation(path: Path) -> ObservationFile:
    """The observation in a file; what is in it is checked by the policy.

    Raises:
        ArchiveError: no archive, an unknown key, or a prompt that is not one text.
    """
    arrays = read_arrays(path)
    images: dict[str, object] = {}
    observation: dict[str, object] = {"images": images}
    noise = arrays.pop("noise", None)
    for name, array in arrays.items():
        if name.startswith(_IMAGE_PREFIX):
            images[name.removeprefix(_IMAGE_PREFIX)] = array
        elif name == "state":
            observation["state"] = array
        elif name == "prompt":
            observation["prompt"] = _text(array, path)
        else:
            raise ArchiveError(
                f"{path}: unknown array {name!r}; expected {_IMAGE_PREFIX}<camera>, state, prompt "
                "and noise."
            )
    return ObservationFile(observation=observation, noise=noise)


def _text(array: Array, path: Path) -> str:
    if array.dtype.kind != "U" or array.size != 1:
        raise ArchiveError(
            f"{path}: prompt is {array.dtype} {array.shape}, expected one text: "
            'numpy.array("pick up the cup").'
        )
    return str(array.reshape(()))
