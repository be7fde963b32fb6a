"""Normalisation statistics of a checkpoint, in openpi's and in LeRobot's layout.

openpi keeps sets of them as `assets/<id>/norm_stats.json`; LeRobot keeps one, as tensors in the
state files of its normaliser (state) and unnormaliser (actions). Nothing is defaulted: without
statistics, or with several sets and no choice, reading stops.

Source: Physical-Intelligence/openpi, src/openpi/shared/normalize.py, commit 15a9616;
huggingface/lerobot, src/lerobot/processor/normalize_processor.py, commit 7427f31.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policyc.compiler.ir.errors import TensorFileError
from policyc.compiler.ir.tensor_file import TensorFile, first_names
from policyc.compiler.ir.types import Array
from policyc.frontends.checkpoint import Checkpoint, file_inside, read_json_object, sha256_of
from policyc.frontends.errors import StatisticsError

ASSETS = "assets"
STATISTICS_FILE = "norm_stats.json"
PREPROCESSOR = "policy_preprocessor.json"
POSTPROCESSOR = "policy_postprocessor.json"
VECTORS = ("mean", "std", "q01", "q99", "min", "max")

NEARLY_CONSTANT = 1e-6
"""A dimension is nearly constant when its spread is at most this, or this share of its magnitude.

It is openpi's epsilon (src/openpi/transforms.py, `Normalize`): from there on the epsilon decides
the scale.
"""

# The spreads that normalisation divides by: lower and upper vector, or one vector alone.
_SPREADS: tuple[tuple[str | None, str], ...] = ((None, "std"), ("q01", "q99"), ("min", "max"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureStatistics:
    """Vectors [width] over the dimensions of one feature, in robot units; None where not given.

    They are finite and of one width; float64 (openpi) or as stored, float32 (LeRobot).
    """

    width: int
    mean: Array | None = None
    std: Array | None = None
    q01: Array | None = None
    q99: Array | None = None
    min: Array | None = None
    max: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistics:
    """The chosen set; a feature is None where the checkpoint has nothing on it.

    Attributes:
        id: openpi's asset id, or the name of LeRobot's preprocessor file.
        file_digests: SHA-256 in hexadecimal of each file read, by its path in the folder.
        notes: a line for each nearly constant dimension, and for features without statistics.
    """

    id: str
    state: FeatureStatistics | None
    actions: FeatureStatistics | None
    file_digests: Mapping[str, str]
    notes: tuple[str, ...]


def read_statistics(checkpoint: Checkpoint, statistics_id: str | None) -> Statistics:
    """Reads and checks the statistics of a checkpoint.

    Args:
        statistics_id: openpi's asset id, such as `physical-intelligence/libero`; may be None where
            there is one set only. A LeRobot checkpoint has no ids.

    Raises:
        StatisticsError: none there, several to choose from, damaged, or of contradicting widths.
    """
    if checkpoint.layout == "openpi":
        identifier, features, paths = _read_assets(checkpoint.folder, statistics_id)
    else:
        identifier, features, paths = _read_processors(checkpoint.folder, statistics_id)
    notes = [
        note
        for name in ("state", "actions")
        for note in _notes(name, features.get(name), checkpoint.folder)
    ]
    return Statistics(
        id=identifier,
        state=features.get("state"),
        actions=features.get("actions"),
        file_digests={
            path.relative_to(checkpoint.folder).as_posix(): sha256_of(path) for path in paths
        },
        notes=tuple(notes),
    )


_Found = tuple[str, dict[str, FeatureStatistics], list[Path]]  # id, features, files read


def _read_assets(folder: Path, statistics_id: str | None) -> _Found:
    present = _asset_ids(folder)
    listed = ", ".join(present) or "none"
    if statistics_id is None and len(present) > 1:
        raise StatisticsError(
            f"{folder / ASSETS}: {len(present)} sets of statistics: {listed}. Choose one by its id."
        )
    if statistics_id is None and not present:
        raise StatisticsError(
            f"{folder}: no statistics; tried {folder / ASSETS / '<id>' / STATISTICS_FILE}. Weight "
            "conversion does not copy that folder: copy it from the original checkpoint."
        )
    identifier = present[0] if statistics_id is None else statistics_id
    path = file_inside(folder, f"{ASSETS}/{identifier}/{STATISTICS_FILE}", StatisticsError)
    if not path.is_file():
        raise StatisticsError(
            f"{folder}: no statistics '{identifier}'; tried {path}. Ids that are there: {listed}."
        )
    content = read_json_object(path, StatisticsError).get("norm_stats")
    if not isinstance(content, dict) or not {"state", "actions"} <= set(content):
        got = first_names(sorted(content)) if isinstance(content, dict) else type(content).__name__
        raise StatisticsError(
            f"{path}: 'norm_stats' must have 'state' and 'actions', got {got}. Recompute them."
        )
    features = {name: _from_json(content[name], name, path) for name in ("state", "actions")}
    return identifier, features, [path]


def _asset_ids(folder: Path) -> list[str]:
    """Ids below `assets`; links to folders are not followed."""
    root = folder / ASSETS
    found = [Path(place) for place, _, files in os.walk(root) if STATISTICS_FILE in files]
    return sorted(place.relative_to(root).as_posix() for place in found if place != root)


def _from_json(value: object, name: str, path: Path) -> FeatureStatistics:
    if not isinstance(value, dict):
        raise StatisticsError(f"{path}: {name}: expected an object, got {type(value).__name__}.")
    vectors: dict[str, Array] = {}
    for key in VECTORS:
        # openpi writes null for quantiles that it did not compute.
        if (items := value.get(key)) is None:
            continue
        if not isinstance(items, list) or not all(type(item) in (int, float) for item in items):
            raise StatisticsError(
                f"{path}: {name}.{key}: expected a flat list of numbers. Recompute the statistics."
            )
        try:
            vectors[key] = np.array(items, np.float64)
        except OverflowError as error:
            raise StatisticsError(f"{path}: {name}.{key}: {error}. Recompute it.") from error
    return _feature(vectors, name, path)


def _feature(vectors: Mapping[str, Array], name: str, path: Path) -> FeatureStatistics:
    """The vectors as one feature, once they are known to fit together."""
    where = f"{path}: statistics of {name}"
    if not vectors:
        raise StatisticsError(f"{where}: none of {', '.join(VECTORS)} is there. Recompute them.")
    widths = {key: vector.shape for key, vector in vectors.items()}
    if len(set(widths.values())) > 1 or any(
        len(shape) != 1 or not shape[0] for shape in widths.values()
    ):
        listed = ", ".join(f"{key} {list(shape)}" for key, shape in widths.items())
        raise StatisticsError(
            f"{where}: expected vectors of one width, got {listed}. Recompute the statistics."
        )
    for key, vector in vectors.items():
        if (bad := np.flatnonzero(~np.isfinite(vector.astype(np.float64)))).size:
            raise StatisticsError(
                f"{where}: {key}[{bad[0]}] is {vector[bad[0]]}, expected a finite number. "
                "Recompute the statistics."
            )
    for lower, upper in _SPREADS:
        spread = _spread(vectors, lower, upper)
        if spread is not None and (bad := np.flatnonzero(spread < 0)).size:
            label = upper if lower is None else f"{upper} - {lower}"
            raise StatisticsError(
                f"{where}: {label} is {spread[bad[0]]:g} in dimension {bad[0]}; it cannot be "
                "negative. Recompute the statistics."
            )
    width = next(iter(widths.values()))[0]
    return FeatureStatistics(width=width, **{key: vectors.get(key) for key in VECTORS})


def _spread(
    vectors: Mapping[str, Array], lower: str | None, upper: str
) -> NDArray[np.float64] | None:
    """`upper - lower`, or `upper` alone, in float64; None where a vector is not given."""
    if upper not in vectors or (lower is not None and lower not in vectors):
        return None
    high = vectors[upper].astype(np.float64)
    return high if lower is None else high - vectors[lower].astype(np.float64)


def _notes(name: str, feature: FeatureStatistics | None, folder: Path) -> list[str]:
    if feature is None:
        return [f"{folder}: the checkpoint has no statistics of {name}."]
    given = {key: getattr(feature, key) for key in VECTORS}
    vectors = {key: vector for key, vector in given.items() if vector is not None}
    notes: list[str] = []
    for lower, upper in _SPREADS:
        spread = _spread(vectors, lower, upper)
        if spread is None:
            continue
        level = vectors.get(lower or "mean", spread).astype(np.float64)
        magnitude = np.maximum(1.0, np.abs(level))
        label = upper if lower is None else f"{upper} - {lower}"
        notes.extend(
            f"{name}[{index}] is nearly constant: {label} = {spread[index]:g}."
            for index in np.flatnonzero(spread <= NEARLY_CONSTANT * magnitude)
        )
    return notes


def _read_processors(folder: Path, statistics_id: str | None) -> _Found:
    if statistics_id is not None:
        raise StatisticsError(
            f"{folder}: a LeRobot checkpoint holds one set of statistics, without an id; got "
            f"'{statistics_id}'. Leave it out."
        )
    features: dict[str, FeatureStatistics] = {}
    paths: list[Path] = []
    for processor, step, prefix, name in (
        (PREPROCESSOR, "normalizer_processor", "observation.state.", "state"),
        (POSTPROCESSOR, "unnormalizer_processor", "action.", "actions"),
    ):
        path = file_inside(folder, processor, StatisticsError)
        state_file = _state_file(path, step)
        paths.append(path)
        if state_file is None:
            continue
        paths.append(file_inside(folder, state_file, StatisticsError))
        if vectors := _read_vectors(paths[-1], prefix):
            features[name] = _feature(vectors, name, paths[-1])
    return PREPROCESSOR.removesuffix(".json"), features, paths


def _state_file(path: Path, step: str) -> str | None:
    """The file that the one step of this kind names; None where the step keeps no state."""
    steps = read_json_object(path, StatisticsError).get("steps")
    if not isinstance(steps, list):
        raise StatisticsError(f"{path}: 'steps' must be a list. Save the checkpoint again.")
    named = [item for item in steps if isinstance(item, dict)]
    found = [item for item in named if item.get("registry_name") == step]
    if len(found) != 1:
        present = first_names([str(item.get("registry_name")) for item in named], limit=12)
        raise StatisticsError(
            f"{path}: expected one step '{step}', found {len(found)}; steps: {present}. "
            "Save the checkpoint again."
        )
    state_file = found[0].get("state_file")
    if state_file is not None and not isinstance(state_file, str):
        raise StatisticsError(f"{path}: '{step}': state_file must be a file name.")
    return state_file


def _read_vectors(path: Path, prefix: str) -> dict[str, Array]:
    """The vectors `<prefix><name>` of a state file; other features are left alone."""
    try:
        file = TensorFile.open(path)
    except TensorFileError as error:
        raise StatisticsError(str(error)) from error
    present = [key for key in VECTORS if prefix + key in file.entries]
    for key in present:
        if (dtype := file.entries[prefix + key].dtype) not in ("F32", "F64"):
            raise StatisticsError(f"{path}: '{prefix}{key}' is {dtype}, expected F32 or F64.")
    return {key: file.read(prefix + key).copy() for key in present}
