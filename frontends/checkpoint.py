"""A checkpoint folder: its configuration and its tensors, checked before any tensor is read.

Which weight files count: `model.safetensors` if it is there, else the shards that
`model.safetensors.index.json` names. Where both are there the single file is used, as openpi and
LeRobot do, and the sharded set must hold the very same tensors; otherwise nobody can say which is
meant, and the checkpoint is refused. No other file is ever read as weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from policyc.compiler.ir.errors import TensorFileError, TypeMismatch
from policyc.compiler.ir.tensor_file import TensorFile, first_names
from policyc.compiler.ir.types import Array, TensorType
from policyc.frontends.errors import CheckpointError, FrontendError

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

OPENPI_KEYS = ("action_horizon", "action_dim", "paligemma_variant")
LEROBOT_KEYS = ("input_features", "output_features", "chunk_size")

_JSON_LIMIT_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 16 * 1024 * 1024

# Entries of a folder without usable weights -> what the folder is, and what to do.
_OTHER_WEIGHTS = (
    (
        "params",
        "an openpi JAX checkpoint; convert it with openpi's convert_jax_model_to_pytorch.py",
    ),
    ("adapter_model.safetensors", "a LoRA adapter; merge it into its base model and save that"),
    ("pytorch_model.bin", "pickled weights, which can run code; save them as safetensors"),
    ("model.pt", "pickled weights, which can run code; save them as safetensors"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """An opened checkpoint; tensors are read one at a time.

    Attributes:
        layout: whose files these are, `openpi` or `lerobot`.
        config: the object in `config.json`.
        tensors: types of all tensors, sorted by name.
        notes: lines for the user about choices that were made.
    """

    folder: Path
    layout: str
    config: Mapping[str, object]
    tensors: Mapping[str, TensorType]
    notes: tuple[str, ...]
    _sources: Mapping[str, TensorFile]

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Reads configuration and file headers, and checks that the set of weight files is whole.

        Raises:
            CheckpointError: with the file at fault and what to do.
        """
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: not a folder. Give the folder that holds {CONFIG}.")
        config = read_json_object(file_inside(folder, CONFIG))
        layout, layout_notes = _detect_layout(folder / CONFIG, config)
        sources, weight_notes = _open_weights(folder)
        return cls(
            folder=folder,
            layout=layout,
            config=config,
            tensors={name: _graph_type(name, sources[name]) for name in sorted(sources)},
            notes=layout_notes + weight_notes,
            _sources=sources,
        )

    def read(self, name: str) -> Array:
        """The values of a tensor, read-only, in the element type of the file.

        Raises:
            CheckpointError: no such tensor.
        """
        try:
            return self._source(name).read(name)
        except TensorFileError as error:
            raise CheckpointError(str(error)) from error

    def same_bytes(self, first: str, second: str) -> bool:
        """Do two tensors have the same type and hold the same bytes?"""
        return self.tensors[first] == self.tensors[second] and _equal(
            self._source(first).raw(first), self._source(second).raw(second)
        )

    def file_digests(self) -> dict[str, str]:
        """SHA-256, in hexadecimal, of `config.json` and every weight file in use, by file name."""
        paths = {source.path for source in self._sources.values()} | {self.folder / CONFIG}
        if not (self.folder / SINGLE).is_file():
            paths.add(self.folder / INDEX)
        return {path.relative_to(self.folder).as_posix(): sha256_of(path) for path in sorted(paths)}

    def _source(self, name: str) -> TensorFile:
        source = self._sources.get(name)
        if source is None:
            raise CheckpointError(
                f"{self.folder}: no tensor '{name}'; the checkpoint has {len(self.tensors)}: "
                f"{first_names(tuple(self.tensors))}."
            )
        return source


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_inside(folder: Path, name: str, error: type[FrontendError] = CheckpointError) -> Path:
    """The path of a file that a checkpoint names; it may not lead out of the folder.

    Symbolic links are followed, and have to end inside too. The one exception is the cache of the
    Hugging Face hub, where a snapshot's files are links into the `blobs` folder beside `snapshots`.
    Whether the file is there is not checked.

    Raises:
        error: an absolute path, `..`, or a link out of the folder.
    """
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
        raise error(f"{folder}: file name {name!r} must be a path inside the folder, without '..'.")
    roots = [folder.resolve()]
    if roots[0].parent.name == "snapshots":
        roots.append(roots[0].parent.parent / "blobs")
    try:
        target = (folder / name).resolve()
    except (OSError, RuntimeError) as fault:
        raise error(f"{folder}: '{name}' cannot be followed: {fault}.") from fault
    if not any(target.is_relative_to(root) for root in roots):
        raise error(
            f"{folder}: '{name}' is a link out of the folder, to {target}. "
            "Copy the file into the folder if that is what you want."
        )
    return folder / name


def read_json_object(path: Path, error: type[FrontendError] = CheckpointError) -> dict[str, object]:
    """The JSON object in a file; repeated keys are refused.

    Raises:
        error: no file, too large, not JSON, or not an object.
    """
    try:
        if path.stat().st_size > _JSON_LIMIT_BYTES:
            raise error(f"{path}: {path.stat().st_size} bytes; the limit is {_JSON_LIMIT_BYTES}.")
        value = json.loads(path.read_text("utf-8"), object_pairs_hook=_object_without_repeats)
    except OSError as fault:
        raise error(f"{path}: cannot be read: {fault.strerror or fault}.") from fault
    except (ValueError, RecursionError) as fault:
        raise error(f"{path}: not valid JSON: {fault}. Copy or write the file again.") from fault
    if not isinstance(value, dict):
        raise error(f"{path}: expected a JSON object, got {type(value).__name__}.")
    return value


def _object_without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key '{key}' occurs twice")
        result[key] = value
    return result


def _detect_layout(path: Path, config: Mapping[str, object]) -> tuple[str, tuple[str, ...]]:
    """The layout, and a note where it had to be inferred."""
    openpi = [key for key in OPENPI_KEYS if key in config]
    lerobot = [key for key in LEROBOT_KEYS if key in config]
    if "type" in config and "action_horizon" not in config:
        return "lerobot", ()
    if "type" not in config and openpi and not lerobot:
        return "openpi", ()
    if "type" not in config and lerobot and "action_horizon" not in config:
        note = (
            f"{path.name} has no 'type'; taken for a LeRobot configuration because it has "
            f"{', '.join(lerobot)}. The tensors decide which policy it is."
        )
        return "lerobot", (note,)
    found = [key for key in ("type", *OPENPI_KEYS, *LEROBOT_KEYS) if key in config]
    raise CheckpointError(
        f"{path}: cannot tell whose checkpoint this is. Looked for 'type' with "
        f"{', '.join(LEROBOT_KEYS)} (LeRobot), or {', '.join(OPENPI_KEYS)} without them (openpi); "
        f"found {', '.join(found) or 'none of them'}. Supported: openpi PyTorch, and LeRobot with "
        'type "pi05". Use the configuration that was saved with the weights.'
    )


def _open_weights(folder: Path) -> tuple[dict[str, TensorFile], tuple[str, ...]]:
    """The file of each tensor, and notes."""
    has_single, has_index = (folder / SINGLE).is_file(), (folder / INDEX).is_file()
    if not has_single and not has_index:
        raise CheckpointError(_no_weights(folder))
    sharded = _open_shards(folder) if has_index else {}
    sources, notes = sharded, []
    if has_single:
        file = _open_file(folder, SINGLE)
        sources = dict.fromkeys(file.names, file)
    if has_single and has_index:
        _require_same(sources, sharded, folder)
        notes.append(f"{SINGLE} and {INDEX} hold the same tensors; {SINGLE} is used.")
    if not sources:
        raise CheckpointError(f"{folder}: the weight files hold no tensor. Save the model again.")
    known = {file.path.name for file in (*sources.values(), *sharded.values())}
    if stray := sorted(_weight_like(folder) - known):
        notes.append(f"Not read, as no index names them: {first_names(stray)}.")
    return sources, tuple(notes)


def _weight_like(folder: Path) -> set[str]:
    """Tensor files in the folder itself, but the state of pre- and post-processing."""
    return {
        path.name for path in folder.glob("*.safetensors") if not path.name.startswith("policy_")
    }


def _no_weights(folder: Path) -> str:
    message = f"{folder}: no weights; looked for {SINGLE} and {INDEX}."
    for name, description in _OTHER_WEIGHTS:
        if (folder / name).exists():
            return f"{message} '{name}' looks like {description}."
    if stray := sorted(_weight_like(folder)):
        return f"{message} There are {first_names(stray)}, which no index names; add the index."
    return f"{message} Download the checkpoint again."


def _open_file(folder: Path, name: str) -> TensorFile:
    try:
        return TensorFile.open(file_inside(folder, name))
    except TensorFileError as error:
        raise CheckpointError(str(error)) from error


def _open_shards(folder: Path) -> dict[str, TensorFile]:
    """The shard of each tensor, once index and shards are known to name the same tensors."""
    path = file_inside(folder, INDEX)
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{path}: 'weight_map' must map tensor names to file names.")
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not file_inside(folder, name).is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: {len(missing)} of {len(names)} files that it names are missing: "
            f"{', '.join(missing)}. Download the checkpoint again."
        )
    files = {name: _open_file(folder, name) for name in names}
    _require_consistent(path, weight_map, files)
    return {tensor: files[name] for tensor, name in weight_map.items()}


def _require_consistent(
    path: Path, weight_map: Mapping[str, str], files: Mapping[str, TensorFile]
) -> None:
    """Raises unless each tensor is in the one shard that the index names for it."""
    absent = [name for name, file in weight_map.items() if name not in files[file].entries]
    homes: dict[str, list[str]] = {}
    for shard, file in files.items():
        for tensor in file.names:
            homes.setdefault(tensor, []).append(shard)
    repeated = [f"{name} ({', '.join(home)})" for name, home in homes.items() if len(home) > 1]
    unnamed = [name for name in homes if name not in weight_map]
    faults = (
        ("named by the index but not in their file", absent),
        ("in more than one file", repeated),
        ("in a file but not named by the index", unnamed),
    )
    found = [
        f"{len(names)} tensors {what}: {first_names(names)}" for what, names in faults if names
    ]
    if found:
        raise CheckpointError(
            f"{path}: index and files do not belong together: {'; '.join(found)}. "
            "Download or save the checkpoint again, into an empty folder."
        )


def _require_same(
    single: Mapping[str, TensorFile], sharded: Mapping[str, TensorFile], folder: Path
) -> None:
    """Raises unless both sets hold the same names, types and bytes; reads tensor by tensor."""
    faults = []
    if only := sorted(single.keys() ^ sharded.keys()):
        faults.append(f"{len(only)} tensors are in only one of them: {first_names(only)}")
    different = [
        name
        for name in sorted(single.keys() & sharded.keys())
        if not _same_bytes(single[name], sharded[name], name)
    ]
    if different:
        faults.append(f"{len(different)} tensors differ: {first_names(different)}")
    if faults:
        raise CheckpointError(
            f"{folder}: {SINGLE} and the files of {INDEX} are both there but disagree: "
            f"{'; '.join(faults)}. Remove the set that is not meant."
        )


def _same_bytes(a: TensorFile, b: TensorFile, name: str) -> bool:
    first, second = a.entries[name], b.entries[name]
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    return _equal(a.raw(name), b.raw(name))


def _equal(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> bool:
    """Compares piece by piece, so that no temporary grows with the tensor."""
    return a.size == b.size and all(
        np.array_equal(a[start : start + _PIECE_BYTES], b[start : start + _PIECE_BYTES])
        for start in range(0, a.size, _PIECE_BYTES)
    )


def _graph_type(name: str, source: TensorFile) -> TensorType:
    entry = source.entries[name]
    try:
        return entry.type
    except TypeMismatch as error:
        raise CheckpointError(
            f"{source.path}: tensor '{name}' is {entry.dtype}, which is not supported; expected "
            "F32 or BF16. Convert the checkpoint."
        ) from error
