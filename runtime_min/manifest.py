"""`manifest.json`: what a bundle is, which files it has, and where each weight lies.

The records are the schema: the reader builds them, the writer builds them and stores
`manifest_text`. Unknown keys at the top level are ignored, so that a later writer can add facts; a
writer whose bundle cannot be run without knowing a new key names it in `requires`. Below the top
level unknown keys are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from policyc.compiler.ir.types import DType
from policyc.runtime_min.errors import BundleError, BundleVersionError
from policyc.runtime_min.fields import Fields, as_text, json_text, parse_json

FORMAT_NAME = "policyc.bundle"
FORMAT_VERSION = 1
OLDEST_FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()
"""Features that a bundle may name in `requires` and this runtime has."""

WEIGHT_ALIGNMENT = 256
_LARGEST_FILE = 2**50
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Digest (64 lower-case hexadecimal digits) and size of a file."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A profile that the bundle was compiled for.

    `minimum_driver` is the lowest CUDA version of the driver, as `cuDriverGetVersion` gives it
    (13000: 13.0).
    """

    name: str
    compute_capability: int
    minimum_driver: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightEntry:
    """Where a weight lies: `offset` counts bytes from the start of the file, a multiple of 256."""

    file: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Limits of an output against its golden vector, and where they come from."""

    max_abs: float
    relative_l2: float
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts of a bundle.

    `options` holds what was decided at compile time (views, horizon, steps, prompt slots, ...) and
    always `batch_buckets`, the ascending batch sizes; `provenance` is for people and is not
    interpreted.
    """

    policy: str
    precision: str
    targets: tuple[Target, ...]
    options: Mapping[str, object]
    files: Mapping[str, FileEntry]
    weights: Mapping[str, WeightEntry]
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    version: int = FORMAT_VERSION

    @property
    def batch_buckets(self) -> tuple[int, ...]:
        buckets = self.options["batch_buckets"]
        assert isinstance(buckets, list | tuple), "the reader checks batch_buckets"
        return tuple(buckets)

    @property
    def compute_capabilities(self) -> tuple[int, ...]:
        return tuple(sorted({target.compute_capability for target in self.targets}))


def capability_text(compute_capability: int) -> str:
    """`9.0` for 90."""
    return f"{compute_capability // 10}.{compute_capability % 10}"


def is_safe_file_name(name: str) -> bool:
    """Does the name stay in the folder: relative, plain characters, no part starting with a dot?"""
    return _FILE_NAME.fullmatch(name) is not None


def manifest_text(manifest: Manifest) -> str:
    """The text of `manifest.json`; equal manifests give equal bytes."""
    value: dict[str, object] = {
        "format": {"name": FORMAT_NAME, "version": manifest.version},
        "requires": list(manifest.requires),
        "policy": manifest.policy,
        "precision": manifest.precision,
        "targets": [
            {
                "name": target.name,
                "compute_capability": target.compute_capability,
                "minimum_driver": target.minimum_driver,
            }
            for target in manifest.targets
        ],
        "options": dict(manifest.options),
        "files": {
            name: {"sha256": entry.sha256, "bytes": entry.size_bytes}
            for name, entry in manifest.files.items()
        },
        "weights": {name: _weight_json(entry) for name, entry in manifest.weights.items()},
        "tolerances": {name: _tolerance_json(item) for name, item in manifest.tolerances.items()},
        "provenance": dict(manifest.provenance),
    }
    return json_text(value)


def _weight_json(entry: WeightEntry) -> dict[str, object]:
    return {
        "file": entry.file,
        "dtype": entry.dtype.value,
        "shape": list(entry.shape),
        "offset": entry.offset,
    }


def _tolerance_json(tolerance: Tolerance) -> dict[str, object]:
    return {
        "max_abs": tolerance.max_abs,
        "relative_l2": tolerance.relative_l2,
        "origin": tolerance.origin,
    }


def read_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in `data`; version and features are checked first.

    Args:
        data: the file's bytes.
        where: its path, for messages.

    Raises:
        BundleVersionError: another format version, or a required feature that this runtime lacks.
        BundleError: a missing key, a wrong type, an unsafe file name, a weight outside its file.
    """
    fields = Fields(parse_json(data, where), where)
    version = _version(fields)
    requires = _requires(fields)
    files = {
        _file_name(name, where): _file(Fields(item, f"{where}.files.{name}"))
        for name, item in fields.mapping("files").items()
    }
    return Manifest(
        version=version,
        requires=requires,
        policy=fields.text("policy"),
        precision=fields.text("precision"),
        targets=_targets(fields),
        options=_options(fields),
        files=files,
        weights={
            name: _weight(Fields(item, f"{where}.weights.{name}"), files)
            for name, item in fields.mapping("weights").items()
        },
        tolerances={
            name: _tolerance(Fields(item, f"{where}.tolerances.{name}"))
            for name, item in fields.mapping("tolerances").items()
        },
        provenance=fields.mapping("provenance"),
    )


def _version(fields: Fields) -> int:
    entry = Fields(fields.value("format"), f"{fields.where}.format")
    name = entry.text("name")
    version = entry.integer("version", 0, 2**31)
    entry.done()
    if name != FORMAT_NAME:
        raise BundleError(f"{entry.where}.name: expected {FORMAT_NAME}, got '{name}'.")
    if version > FORMAT_VERSION:
        raise BundleVersionError(
            f"{fields.where}: bundle format {version}, this runtime reads {OLDEST_FORMAT_VERSION} "
            "to "
            f"{FORMAT_VERSION}. Upgrade policyc on this machine."
        )
    if version < OLDEST_FORMAT_VERSION:
        raise BundleVersionError(
            f"{fields.where}: bundle format {version}, this runtime reads {OLDEST_FORMAT_VERSION} "
            "to "
            f"{FORMAT_VERSION}. Compile the bundle again with a newer policyc."
        )
    return version


def _requires(fields: Fields) -> tuple[str, ...]:
    requires = tuple(
        as_text(item, f"{fields.where}.requires[{index}]")
        for index, item in enumerate(fields.items("requires"))
    )
    lacking = [feature for feature in requires if feature not in FEATURES]
    if lacking:
        known = ", ".join(sorted(FEATURES)) or "none"
        raise BundleVersionError(
            f"{fields.where}.requires: this runtime lacks {', '.join(lacking)}; it has {known}. "
            "Upgrade policyc on this machine."
        )
    return requires


def _file_name(name: str, where: str) -> str:
    if not is_safe_file_name(name):
        raise BundleError(
            f"{where}.files: name '{name}' is refused: names are relative, of letters, digits, "
            "'.', '_', "
            "'-' and '/', and no part starts with a dot."
        )
    return name


def _file(fields: Fields) -> FileEntry:
    entry = FileEntry(
        sha256=fields.text("sha256"), size_bytes=fields.integer("bytes", 0, _LARGEST_FILE)
    )
    fields.done()
    if _DIGEST.fullmatch(entry.sha256) is None:
        raise BundleError(f"{fields.where}.sha256: expected 64 hexadecimal digits.")
    return entry


def _targets(fields: Fields) -> tuple[Target, ...]:
    targets: list[Target] = []
    for index, item in enumerate(fields.items("targets")):
        entry = Fields(item, f"{fields.where}.targets[{index}]")
        targets.append(
            Target(
                name=entry.text("name"),
                compute_capability=entry.integer("compute_capability", 10, 999),
                minimum_driver=entry.integer("minimum_driver", 0, 10**6),
            )
        )
        entry.done()
    names = [target.name for target in targets]
    if len(set(names)) != len(names):
        raise BundleError(f"{fields.where}.targets: names repeat: {', '.join(names)}.")
    return tuple(targets)


def _options(fields: Fields) -> dict[str, object]:
    options = fields.mapping("options")
    buckets = Fields(options, f"{fields.where}.options").integers("batch_buckets", 1, 2**20)
    if not buckets or list(buckets) != sorted(set(buckets)):
        raise BundleError(
            f"{fields.where}.options.batch_buckets: expected ascending batch sizes, got "
            f"{list(buckets)}."
        )
    return options


def _weight(fields: Fields, files: Mapping[str, FileEntry]) -> WeightEntry:
    file = fields.text("file")
    if file not in files:
        raise BundleError(f"{fields.where}.file: '{file}' is not among the files of the manifest.")
    dtype = fields.text("dtype")
    if dtype not in {member.value for member in DType}:
        known = ", ".join(member.value for member in DType)
        raise BundleError(f"{fields.where}.dtype: unknown '{dtype}'; known: {known}.")
    entry = WeightEntry(
        file=file,
        dtype=DType(dtype),
        shape=fields.integers("shape", 0, _LARGEST_FILE),
        offset=fields.integer("offset", 0, _LARGEST_FILE),
    )
    fields.done()
    if entry.offset % WEIGHT_ALIGNMENT:
        raise BundleError(
            f"{fields.where}.offset: expected a multiple of {WEIGHT_ALIGNMENT}, got {entry.offset}."
        )
    if entry.offset + entry.size_bytes > files[file].size_bytes:
        raise BundleError(
            f"{fields.where}: ends at byte {entry.offset + entry.size_bytes} of {file}, which has "
            f"{files[file].size_bytes} bytes."
        )
    return entry


def _tolerance(fields: Fields) -> Tolerance:
    tolerance = Tolerance(
        max_abs=fields.number("max_abs"),
        relative_l2=fields.number("relative_l2"),
        origin=fields.text("origin"),
    )
    fields.done()
    if min(tolerance.max_abs, tolerance.relative_l2) < 0:
        raise BundleError(f"{fields.where}: limits are not negative, got {tolerance}.")
    return tolerance
