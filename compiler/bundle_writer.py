"""Writes a bundle aside and puts it in place when it is whole.

The schema is the reader's (`runtime_min`): this file fills its records. Equal contents give
equal bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from policyc.compiler.golden import GoldenVectors
from policyc.compiler.ir.graph import Graph, Value
from policyc.compiler.ir.tensor_file import TensorFile, write_tensors
from policyc.compiler.ir.text import print_graph
from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.compiler.materialise import PackedWeights
from policyc.compiler.options import OptionError
from policyc.runtime_min.bundle import (
    GOLDEN_NAME,
    MANIFEST_NAME,
    PROCESSING_NAME,
    graph_name,
    plan_name,
)
from policyc.runtime_min.fields import json_text
from policyc.runtime_min.manifest import (
    FileEntry,
    Manifest,
    Target,
    WeightEntry,
    manifest_text,
)
from policyc.runtime_min.plan import Plan, plan_text

WEIGHT_FILE_BYTES = 4 << 30
"""A weight file is closed once it holds this much."""
NOTICE_NAME = "NOTICE"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleContents:
    """Everything that goes into a bundle; see the schema in `runtime_min`.

    `golden` is asked for once, after the weights are written: it may be made meanwhile.
    """

    policy: str
    precision: str
    targets: tuple[Target, ...]
    options: Mapping[str, object]
    provenance: Mapping[str, object]
    notice: str
    graphs: Mapping[int, Graph]
    plans: Mapping[int, Plan]
    cubins: Mapping[str, bytes]
    weights: PackedWeights
    processing: Mapping[str, object]
    processing_files: Mapping[str, Path]
    golden: Callable[[], GoldenVectors | None]


def write_bundle(output: Path, contents: BundleContents) -> None:
    """Write the bundle folder; an older bundle of that name is replaced at the very end.

    Raises:
        OptionError: `output` exists and is not a bundle.
        OSError: the disk is full or the folder cannot be written; nothing is left under `output`.
    """
    require_writable(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with _aside(output) as folder:
        _write_files(folder, contents)
        _put_in_place(folder, output)


def require_writable(output: Path) -> None:
    """Refuse to replace anything but a bundle."""
    if output.exists() and not (output / MANIFEST_NAME).is_file():
        raise OptionError(
            f"{output} exists and is not a bundle; it is left alone. Choose another output."
        )


@contextlib.contextmanager
def _aside(output: Path) -> Iterator[Path]:
    """A folder beside the output, removed however the block ends."""
    folder = output.with_name(f".{output.name}.{os.getpid()}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(folder: Path, output: Path) -> None:
    older = output.with_name(f".{output.name}.{os.getpid()}.older")
    if output.exists():
        output.rename(older)
    try:
        folder.rename(output)
    except OSError:
        if older.exists():
            older.rename(output)
        raise
    shutil.rmtree(older, ignore_errors=True)


def _write_files(folder: Path, contents: BundleContents) -> None:
    texts = {graph_name(batch): print_graph(graph) for batch, graph in contents.graphs.items()}
    texts |= {plan_name(plan): plan_text(contents.plans[plan]) for plan in contents.plans}
    texts[PROCESSING_NAME] = json_text(dict(contents.processing))
    texts[NOTICE_NAME] = contents.notice
    data = {name: text.encode("utf-8") for name, text in texts.items()} | dict(contents.cubins)
    files = {name: _write(folder / name, content) for name, content in data.items()}
    for name, source in contents.processing_files.items():
        files[name] = _write(folder / name, source.read_bytes())
    weights, weight_files = _write_weights(folder, contents.weights)
    files |= weight_files
    golden = contents.golden()
    if golden is not None:
        files[GOLDEN_NAME] = _write_golden(folder / GOLDEN_NAME, golden)
    manifest = Manifest(
        policy=contents.policy,
        precision=contents.precision,
        targets=contents.targets,
        options=contents.options,
        files=files,
        weights=weights,
        tolerances=golden.tolerances if golden is not None else {},
        provenance=contents.provenance,
    )
    _write(folder / MANIFEST_NAME, manifest_text(manifest).encode("utf-8"))


def _write(path: Path, data: bytes) -> FileEntry:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return FileEntry(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def _write_tensors(
    path: Path,
    entries: list[tuple[str, TensorType]],
    produce: Callable[[str], Array | Iterator[Array]],
) -> FileEntry:
    """Write a tensor file; its digest is taken on the way, since reading it again costs as much."""
    digest = write_tensors(path, entries, produce, {})
    return FileEntry(sha256=digest, size_bytes=path.stat().st_size)


def _write_golden(path: Path, golden: GoldenVectors) -> FileEntry:
    entries = [
        (name, TensorType(DType.of(array.dtype), array.shape))
        for name, array in sorted(golden.tensors.items())
    ]
    return _write_tensors(path, entries, golden.tensors.__getitem__)


def _write_weights(
    folder: Path, weights: PackedWeights
) -> tuple[dict[str, WeightEntry], dict[str, FileEntry]]:
    """Where each weight lies, and the files that hold them."""
    index: dict[str, WeightEntry] = {}
    files: dict[str, FileEntry] = {}
    for number, group in enumerate(_weight_files(weights.values), start=1):
        name = f"weights-{number:05d}.safetensors"
        entries = [(value.name.removeprefix("@"), value.type) for value in group]
        files[name] = _write_tensors(
            folder / name, entries, lambda label: weights.blocks(f"@{label}")
        )
        placed = TensorFile.open(folder / name).entries
        for label, kind in entries:
            index[label] = WeightEntry(
                file=name, dtype=kind.dtype, shape=kind.shape, offset=placed[label].begin
            )
    return index, files


def _weight_files(values: tuple[Value, ...]) -> Iterator[list[Value]]:
    group: list[Value] = []
    size = 0
    for value in values:
        if group and size + value.type.size_bytes > WEIGHT_FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(value)
        size += value.type.size_bytes
    if group:
        yield group
