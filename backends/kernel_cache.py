"""Compiled kernels, and the folder that keeps them by content.

An entry is one file: the SHA-256 of the rest, a line of JSON, the cubin. An entry that is damaged
counts as absent and is written again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

FORMAT = 1
LARGEST_ENTRY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMapLayout:
    """How a tensor map of a kernel must be encoded: Triton's `tensordesc_meta`."""

    box: tuple[int, ...]
    swizzle: int
    element_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """Machine code and what a launch needs to know; `parameters` are (offset, size) in bytes."""

    cubin: bytes
    entry: str
    shared_bytes: int
    block_threads: int
    pdl: bool
    parameters: tuple[tuple[int, int], ...]
    tensor_maps: tuple[TensorMapLayout, ...]


class KernelCache:
    """A folder of entries; several processes may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key(self, *parts: str) -> str:
        """The name of the entry that `parts` decide."""
        text = json.dumps([FORMAT, *parts])
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, key: str) -> CompiledKernel | None:
        """The entry, or None if there is no intact one."""
        path = self._path(key)
        if not path.is_file() or path.stat().st_size > LARGEST_ENTRY_BYTES:
            return None
        digest, _, body = path.read_bytes().partition(b"\n")
        if digest != _digest(key, body):
            return None
        text, _, cubin = body.partition(b"\n")
        return _decode(text, cubin)

    def write(self, key: str, kernel: CompiledKernel) -> None:
        """Add an entry; a reader sees all of it or nothing."""
        fields = asdict(kernel)
        cubin = fields.pop("cubin")
        body = json.dumps(fields, sort_keys=True).encode() + b"\n" + cubin
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(_digest(key, body) + b"\n" + body)
        Path(file.name).replace(path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.kernel"


def _digest(key: str, body: bytes) -> bytes:
    """Of content and key, so that an entry under another's name is found out."""
    return hashlib.sha256(key.encode() + b"\n" + body).hexdigest().encode()


def _decode(text: bytes, cubin: bytes) -> CompiledKernel:
    fields = json.loads(text)
    return CompiledKernel(
        cubin=cubin,
        entry=fields["entry"],
        shared_bytes=fields["shared_bytes"],
        block_threads=fields["block_threads"],
        pdl=fields["pdl"],
        parameters=tuple((offset, size) for offset, size in fields["parameters"]),
        tensor_maps=tuple(
            TensorMapLayout(
                box=tuple(item["box"]),
                swizzle=item["swizzle"],
                element_type=item["element_type"],
            )
            for item in fields["tensor_maps"]
        ),
    )
