"""A bundle on disk: opened, checked, read.

Only files that the manifest lists are ever read; others in the folder are ignored. Sizes of all
files and digests of the small ones are checked on opening, the digest of a file again when it is
read whole; the weights' digests are checked by `verify` (they are gigabytes).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from policyc.compiler.ir.errors import IrError
from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.tensor_file import TensorFile
from policyc.compiler.ir.types import Array, TensorType
from policyc.runtime_min.errors import BundleError, PlanError
from policyc.runtime_min.manifest import Manifest, WeightEntry, read_manifest
from policyc.runtime_min.plan import (
    Argument,
    DescriptorArgument,
    Plan,
    WeightArgument,
)
from policyc.runtime_min.plan_reader import read_plan

MANIFEST_NAME = "manifest.json"
PROCESSING_NAME = "processing.json"
GOLDEN_NAME = "golden.safetensors"
DigestCheck = Literal["sizes", "all"]

_LARGEST_MANIFEST_BYTES = 64 << 20
_SMALL_FILE_BYTES = 16 << 20
_HASH_CHUNK_BYTES = 4 << 20
_COPY_AGAIN = (
    "The copy or the compile did not finish, or the file was changed; copy the bundle again."
)


def graph_name(batch: int) -> str:
    """File of the graph for a batch size."""
    return f"graph/{batch}.ir"


def plan_name(compute_capability: int) -> str:
    """File of the plan for a compute capability."""
    return f"plan/{compute_capability}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An opened bundle. Holds no file open."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, verify_digests: DigestCheck = "sizes") -> Bundle:
        """Open and check a bundle folder.

        Args:
            path: the `NAME.policy` folder.
            verify_digests: "sizes" checks every size and the digests of files up to 16 MiB, "all"
                the digest of every file.

        Raises:
            BundleVersionError: this runtime does not read the format. Checked first.
            BundleError: no bundle, an unsafe name, a missing, cut or changed file.
        """
        if verify_digests not in ("sizes", "all"):
            raise BundleError(f"verify: expected 'sizes' or 'all', got '{verify_digests}'.")
        folder = Path(path)
        manifest = read_manifest(_manifest_bytes(folder), str(folder / MANIFEST_NAME))
        bundle = cls(folder=folder, manifest=manifest)
        bundle._check_sizes()
        bundle._check_required_files()
        if verify_digests == "all":
            bundle.verify()
        else:
            bundle._check_digests(_SMALL_FILE_BYTES)
        return bundle

    def verify(self) -> None:
        """Check every digest, weights included, and the index of weights against their files.

        Raises:
            BundleError: names the file, and the weight if it is about one.
        """
        self._check_digests(None)
        self._check_index()

    def has(self, name: str) -> bool:
        """Is the file listed in the manifest?"""
        return name in self.manifest.files

    def path_of(self, name: str) -> Path:
        """Path of a listed file; raises BundleError if unlisted or leading out of the folder."""
        if name not in self.manifest.files:
            known = ", ".join(sorted(self.manifest.files)[:8])
            raise BundleError(f"{self.folder}: no file '{name}' in the manifest; it lists {known}.")
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise BundleError(f"{path}: leads out of the bundle by a symbolic link; refused.")
        return path

    def read(self, name: str) -> bytes:
        """Bytes of a small file, its digest checked."""
        data = self.path_of(name).read_bytes()
        self._compare_digest(name, hashlib.sha256(data).hexdigest())
        return data

    def graph(self, batch: int) -> Graph:
        """The graph of a batch bucket; raises BundleError if its text does not parse."""
        name = graph_name(batch)
        try:
            return parse_graph(self.read(name).decode("utf-8"))
        except (UnicodeDecodeError, IrError) as fault:
            raise BundleError(
                f"{self.folder / name}: {fault}. Compile the bundle again."
            ) from fault

    def plan(self, compute_capability: int) -> Plan:
        """The plan of a compute capability, checked against files, weights and batch buckets."""
        name = plan_name(compute_capability)
        where = str(self.folder / name)
        plan = read_plan(self.read(name), where)
        _check_plan(plan, self.manifest, where)
        if plan.compute_capability != compute_capability:
            raise PlanError(f"{where}: is for compute capability {plan.compute_capability}.")
        return plan

    def weight_entry(self, name: str) -> WeightEntry:
        """Place of a weight (without `@`); raises BundleError that lists some known names."""
        entry = self.manifest.weights.get(name)
        if entry is None:
            known = ", ".join(sorted(self.manifest.weights)[:8]) or "none"
            raise BundleError(f"{self.folder}: no weight '{name}' in the manifest; it has {known}.")
        return entry

    def map_weight(self, name: str) -> Array:
        """A weight (without `@`) as a read-only array mapped from its file."""
        entry = self.weight_entry(name)
        path = self.path_of(entry.file)
        if entry.size_bytes == 0:
            return np.zeros(entry.shape, entry.dtype.numpy)
        if path.stat().st_size < entry.offset + entry.size_bytes:
            raise BundleError(f"{path}: ends within weight '{name}'. {_COPY_AGAIN}")
        data = np.memmap(path, np.uint8, "r", entry.offset, (entry.size_bytes,))
        return np.asarray(data).view(entry.dtype.numpy).reshape(entry.shape)

    def _check_sizes(self) -> None:
        faults: list[str] = []
        for name, entry in sorted(self.manifest.files.items()):
            path = self.path_of(name)
            if not path.is_file():
                faults.append(f"{name} is missing")
            elif path.stat().st_size != entry.size_bytes:
                faults.append(
                    f"{name} has {path.stat().st_size} bytes, expected {entry.size_bytes}"
                )
        if faults:
            raise BundleError(f"{self.folder}: {'; '.join(faults)}. {_COPY_AGAIN}")

    def _check_required_files(self) -> None:
        needed = [graph_name(batch) for batch in self.manifest.batch_buckets]
        needed += [plan_name(capability) for capability in self.manifest.compute_capabilities]
        absent = [name for name in needed if not self.has(name)]
        if absent:
            raise BundleError(
                f"{self.folder}: the manifest promises batch buckets and targets whose files it "
                "does not "
                f"list: {', '.join(absent)}. Compile the bundle again."
            )

    def _check_digests(self, limit_bytes: int | None) -> None:
        for name, entry in sorted(self.manifest.files.items()):
            if limit_bytes is None or entry.size_bytes <= limit_bytes:
                self._compare_digest(name, _file_digest(self.path_of(name)))

    def _check_index(self) -> None:
        files: dict[str, TensorFile] = {}
        for name, entry in sorted(self.manifest.weights.items()):
            try:
                if entry.file not in files:
                    files[entry.file] = TensorFile.open(self.path_of(entry.file))
                stored = files[entry.file].entries.get(name)
                found = None if stored is None else (stored.type, stored.begin)
            except IrError as fault:
                raise BundleError(f"{self.folder}: {fault}. {_COPY_AGAIN}") from fault
            expected = (TensorType(entry.dtype, entry.shape), entry.offset)
            if found != expected:
                raise BundleError(
                    f"{self.folder / entry.file}: weight '{name}' is {found}, the manifest has "
                    f"{expected} (type, offset). {_COPY_AGAIN}"
                )

    def _compare_digest(self, name: str, digest: str) -> None:
        expected = self.manifest.files[name].sha256
        if digest != expected:
            raise BundleError(
                f"{self.folder / name}: SHA-256 is {digest}, the manifest has {expected}. "
                f"{_COPY_AGAIN}"
            )


def _manifest_bytes(folder: Path) -> bytes:
    path = folder / MANIFEST_NAME
    if not folder.exists():
        raise BundleError(f"{folder}: no such bundle. Check the path.")
    if not folder.is_dir():
        raise BundleError(f"{folder}: a bundle is a folder (NAME.policy); this is a file.")
    if not path.is_file():
        raise BundleError(
            f"{folder}: has no {MANIFEST_NAME}: not a bundle, or a half-written one. "
            "Compile it again, or finish the copy."
        )
    if path.stat().st_size > _LARGEST_MANIFEST_BYTES:
        raise BundleError(
            f"{path}: {path.stat().st_size} bytes; at most {_LARGEST_MANIFEST_BYTES}."
        )
    return path.read_bytes()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _check_plan(plan: Plan, manifest: Manifest, where: str) -> None:
    if tuple(sorted(plan.buckets)) != manifest.batch_buckets:
        raise PlanError(
            f"{where}.buckets: {sorted(plan.buckets)}, the manifest has "
            f"{list(manifest.batch_buckets)}."
        )
    for name, kernel in plan.kernels.items():
        if kernel.file not in manifest.files:
            raise PlanError(f"{where}.kernels.{name}.file: '{kernel.file}' is not in the manifest.")
    for batch, bucket in plan.buckets.items():
        for index, launch in enumerate(bucket.launches):
            for argument in launch.args:
                place = f"{where}.buckets.{batch}.launches[{index}] (node {launch.node})"
                _check_weight(argument, manifest, place)


def _check_weight(argument: Argument, manifest: Manifest, where: str) -> None:
    pointer: Argument = argument
    extent = 1
    if isinstance(argument, DescriptorArgument):
        pointer = argument.base
        extent = argument.extent_bytes
    if not isinstance(pointer, WeightArgument):
        return
    entry = manifest.weights.get(pointer.weight)
    if entry is None:
        raise PlanError(f"{where}: weight '{pointer.weight}' is not in the manifest.")
    if pointer.offset + extent > entry.size_bytes:
        raise PlanError(
            f"{where}: reads to byte {pointer.offset + extent} of weight '{pointer.weight}', which "
            "has "
            f"{entry.size_bytes} bytes."
        )
