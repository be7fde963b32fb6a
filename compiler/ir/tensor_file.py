"""Safetensors files: a reader that trusts nothing, and a writer that streams.

The reader checks the whole header before any tensor is touched and then maps the file, so opening
costs no memory. The tensors must cover the data exactly: bytes left over after the last tensor are
refused, as holes and overlaps are. Compiler and runtime both read through this file and so treat
every file alike.

Source: the format text in the README of huggingface/safetensors (8 bytes little-endian header
length, JSON header, data; header cap of 100 MB).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from policyc.compiler.ir.errors import TensorFileError, TypeMismatch
from policyc.compiler.ir.types import Array, DType, TensorType

HEADER_LIMIT_BYTES = 100_000_000
ALIGNMENT_BYTES = 256
"""Every tensor that `write_tensors` places starts at a multiple of this in the file."""
PADDING_PREFIX = "_pad."
"""Names of the filler entries of `write_tensors`; they hold zeros."""

_METADATA = "__metadata__"
_LENGTH_BYTES = 8
# numpy arrays have at most 32 axes before numpy 2, and sizes are signed 64-bit.
_MAX_RANK = 32
_MAX_BYTES = 2**63 - 1

_NUMPY: dict[str, np.dtype[np.generic]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype(np.bool_),
}

_PICKLE_ADVICE = (
    "Pickled weights are not read because they can run code; convert them to safetensors with the "
    "framework that wrote them"
)

# First bytes -> what it is, and what to do.
_LOOKALIKES: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs",
        "a git-lfs pointer, not the file itself. Run `git lfs pull` in its repository",
    ),
    (b"<!doctype", "a web page. The download failed or asks for a login; download the file again"),
    (b"<html", "a web page. The download failed or asks for a login; download the file again"),
    (
        b"PK\x03\x04",
        f"a zip archive, as torch.save writes. {_PICKLE_ADVICE}",
    ),
    *((bytes((0x80, protocol)), f"a pickle. {_PICKLE_ADVICE}") for protocol in (2, 3, 4, 5)),
    (b"GGUF", "a GGUF file. Use the original safetensors checkpoint"),
    (b"\x1f\x8b", "a gzip archive. Unpack it first"),
    (b"{", "plain JSON. An index or configuration file was renamed; use the weight file"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor: element type as the format names it, shape, byte range in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return _NUMPY[self.dtype]

    @property
    def type(self) -> TensorType:
        """As a graph type; raises TypeMismatch for an element type that graphs lack (F16, ..)."""
        return TensorType(DType.of(self.numpy), self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorFile:
    """An open file: its header, checked, and its bytes, mapped read-only."""

    path: Path
    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    _bytes: NDArray[np.uint8]

    @classmethod
    def open(cls, path: Path) -> TensorFile:
        """Checks the header and maps the file; no tensor is read.

        Raises:
            TensorFileError: not there, not a safetensors file, damaged or cut short.
        """
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise TensorFileError(f"{path}: not a regular file.")
            with path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                header_bytes = _header_length(file, path, size_bytes)
                entries, metadata = _parse_header(file.read(header_bytes), path)
                placed = _place(entries, _LENGTH_BYTES + header_bytes, size_bytes, path)
                mapped = np.memmap(file, dtype=np.uint8, mode="r", shape=(size_bytes,))
        except OSError as error:
            raise TensorFileError(f"{path}: cannot be read: {error.strerror or error}.") from error
        return cls(path=path, entries=placed, metadata=metadata, _bytes=np.asarray(mapped))

    @property
    def names(self) -> tuple[str, ...]:
        """Tensors in the order of the header, without the padding entries of `write_tensors`."""
        return tuple(name for name in self.entries if not name.startswith(PADDING_PREFIX))

    @property
    def size_bytes(self) -> int:
        return self._bytes.size

    def read(self, name: str) -> Array:
        """The tensor, read-only: a view of the mapped file where it is aligned, else a copy.

        Raises:
            TensorFileError: no such tensor, or a BOOL tensor with bytes other than 0 and 1.
        """
        data, entry = self.raw(name), self.entries[name]
        if entry.dtype == "BOOL" and data.size and data.max() > 1:
            raise TensorFileError(
                f"{self.path}: tensor '{name}' is BOOL but holds the byte {data.max()}; expected 0 "
                "or 1. The file is damaged; copy it again."
            )
        if entry.begin % entry.numpy.itemsize:
            data = data.copy()
            data.flags.writeable = False
        return data.view(entry.numpy).reshape(entry.shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of the tensor, a read-only view of the mapped file.

        Raises:
            TensorFileError: no such tensor.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise TensorFileError(
                f"{self.path}: no tensor '{name}'; the file has {len(self.names)}: "
                f"{first_names(self.names)}."
            )
        return self._bytes[entry.begin : entry.end]


def first_names(names: Sequence[str], limit: int = 5) -> str:
    """The first few names for a message, with `..` where some are left out."""
    shown = ", ".join(names[:limit])
    return f"{shown}, .." if len(names) > limit else shown or "none"


def _header_length(file: BinaryIO, path: Path, size_bytes: int) -> int:
    """Length of the JSON header, known to lie inside the file and below the cap."""
    start = file.read(64)
    file.seek(_LENGTH_BYTES)
    if size_bytes < _LENGTH_BYTES:
        raise TensorFileError(
            f"{path}: cut short: expected at least {_LENGTH_BYTES} bytes, got {size_bytes}. "
            "Download or copy it again."
        )
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if start[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{":
        raise TensorFileError(f"{path}: not a safetensors file: {_looks_like(start)}.")
    if length > HEADER_LIMIT_BYTES:
        # Text that happens to have a brace as its ninth byte ends here as well.
        raise TensorFileError(
            f"{path}: the header takes {length} bytes; the format's cap is {HEADER_LIMIT_BYTES}. "
            "Split the checkpoint into shards with fewer tensors."
        )
    if _LENGTH_BYTES + length > size_bytes:
        raise TensorFileError(
            f"{path}: cut short within the header: expected at least {_LENGTH_BYTES + length} "
            f"bytes, got {size_bytes}. Download or copy it again."
        )
    return length


def _looks_like(start: bytes) -> str:
    text = start.lstrip().lower()
    for mark, description in _LOOKALIKES:
        if text.startswith(mark.lower()):
            return f"it looks like {description}"
    return f"it starts with {start[:16]!r}, not with a header. Download or copy it again"


def _parse_header(header: bytes, path: Path) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Entries (byte ranges still relative to the data) and metadata."""
    try:
        parsed = json.loads(header.decode("utf-8"), object_pairs_hook=_object_without_repeats)
    except (ValueError, RecursionError) as error:
        raise TensorFileError(
            f"{path}: the header is not valid JSON: {error}. The file is damaged; copy it again."
        ) from error
    if not isinstance(parsed, dict):
        raise TensorFileError(f"{path}: the header is {type(parsed).__name__}, expected an object.")
    metadata = parsed.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise TensorFileError(f"{path}: {_METADATA} must map names to strings.")
    return {name: _entry(name, item, path) for name, item in parsed.items()}, metadata


def _object_without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the name '{key}' occurs twice")
        result[key] = value
    return result


def _entry(name: str, item: object, path: Path) -> TensorEntry:
    where = f"{path}: tensor '{name}'"
    if not isinstance(item, dict) or set(item) != {"dtype", "shape", "data_offsets"}:
        got = sorted(item) if isinstance(item, dict) else type(item).__name__
        raise TensorFileError(f"{where}: expected dtype, shape and data_offsets, got {got}.")
    dtype, shape = item["dtype"], item["shape"]
    if not isinstance(dtype, str) or dtype not in _NUMPY:
        raise TensorFileError(
            f"{where}: element type {dtype!r} is not supported; known: {', '.join(_NUMPY)}."
        )
    offsets = item["data_offsets"]
    if not _are_sizes(shape) or len(shape) > _MAX_RANK:
        raise TensorFileError(
            f"{where}: shape must be at most {_MAX_RANK} sizes of 0 to 2^63 - 1, "
            f"got {_short(shape)}."
        )
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise TensorFileError(
            f"{where}: data_offsets must be two ascending byte offsets, got {_short(offsets)}."
        )
    itemsize = _NUMPY[dtype].itemsize
    # Strides overflow even where a zero elsewhere makes the tensor empty.
    if math.prod(size for size in shape if size) * itemsize > _MAX_BYTES:
        raise TensorFileError(f"{where}: shape {_short(shape)} overflows 64-bit sizes.")
    expected, got_bytes = math.prod(shape) * itemsize, offsets[1] - offsets[0]
    if expected != got_bytes:
        raise TensorFileError(
            f"{where}: {dtype} {shape} takes {expected} bytes, but data_offsets span {got_bytes}."
        )
    return TensorEntry(dtype=dtype, shape=tuple(shape), begin=offsets[0], end=offsets[1])


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item <= _MAX_BYTES for item in value
    )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _place(
    entries: dict[str, TensorEntry], data_start: int, size_bytes: int, path: Path
) -> dict[str, TensorEntry]:
    """Entries with offsets in the file, which they are known to cover without hole or overlap."""
    position, previous = 0, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            fault = "overlaps" if entry.begin < position else "leaves a hole after"
            raise TensorFileError(
                f"{path}: tensor '{name}' {fault} {previous}: expected it to begin at byte "
                f"{position} of the data, got {entry.begin}. The file is damaged; write it again."
            )
        position, previous = entry.end, f"'{name}'"
    expected = data_start + position
    if size_bytes < expected:
        raise TensorFileError(
            f"{path}: cut short: expected {expected} bytes, got {size_bytes} "
            f"({expected - size_bytes} missing). Download or copy it again."
        )
    if size_bytes > expected:
        raise TensorFileError(
            f"{path}: {size_bytes - expected} surplus bytes after the last tensor: expected "
            f"{expected} bytes, got {size_bytes}. Download or copy the file again, or write it "
            "anew with a safetensors writer."
        )
    return {
        name: replace(entry, begin=data_start + entry.begin, end=data_start + entry.end)
        for name, entry in entries.items()
    }


def write_tensors(
    path: Path,
    entries: Sequence[tuple[str, TensorType]],
    produce: Callable[[str], Array | Iterator[Array]],
    metadata: Mapping[str, str],
) -> str:
    """Writes a file, one tensor or block in memory at a time.

    Each tensor begins at a multiple of 256 bytes in the file.

    The bytes depend on the arguments alone. The file appears under its name once it is complete.

    Args:
        path: the file; replaced where it exists.
        entries: names and types, in the order in which they are produced and placed.
        produce: gives the array of a name, of exactly the announced type, or blocks of its rows in
            order.
        metadata: strings for the header.

    Returns:
        The SHA-256 of the file, in hexadecimal.

    Raises:
        TensorFileError: a header above the format's cap; a name that is repeated or reserved.
        TypeMismatch: `produce` returned another type than announced.
    """
    layout = _layout(entries, path)
    header = _header(layout, metadata, path)
    partial = path.with_name(path.name + ".partial")
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as file:
            _put(file, digest, len(header).to_bytes(_LENGTH_BYTES, "little") + header)
            for name, kind, begin in layout:
                assert file.tell() == _LENGTH_BYTES + len(header) + begin, f"{name} is misplaced"
                if name.startswith(PADDING_PREFIX):
                    _put(file, digest, bytes(kind.size_bytes))
                else:
                    for block in _blocks(name, kind, produce(name)):
                        _put(file, digest, block.data)
        partial.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    return digest.hexdigest()


def _put(file: BinaryIO, digest: hashlib._Hash, data: bytes | memoryview) -> None:
    file.write(data)
    digest.update(data)


_Layout = list[tuple[str, TensorType, int]]  # name, type, offset in the data


def _layout(entries: Sequence[tuple[str, TensorType]], path: Path) -> _Layout:
    result: _Layout = []
    seen: set[str] = set()
    position = 0
    for name, kind in entries:
        if name in seen or name == _METADATA or name.startswith(PADDING_PREFIX):
            fault = "given twice" if name in seen else "reserved"
            raise TensorFileError(f"{path}: tensor name '{name}' is {fault}; use another name.")
        seen.add(name)
        if padding := -position % ALIGNMENT_BYTES:
            filler = TensorType(DType.U8, (padding,))
            result.append((f"{PADDING_PREFIX}{len(result) - len(seen) + 1}", filler, position))
            position += padding
        result.append((name, kind, position))
        position += kind.size_bytes
    return result


def _header(layout: _Layout, metadata: Mapping[str, str], path: Path) -> bytes:
    """The JSON header, filled with spaces so that the data begins at a multiple of 256."""
    items: dict[str, object] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
    for name, kind, begin in layout:
        items[name] = {
            "dtype": kind.dtype.value.upper(),
            "shape": list(kind.shape),
            "data_offsets": [begin, begin + kind.size_bytes],
        }
    text = json.dumps(items, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-(_LENGTH_BYTES + len(text)) % ALIGNMENT_BYTES)
    if len(text) > HEADER_LIMIT_BYTES:
        raise TensorFileError(
            f"{path}: {len(layout)} tensors need a header of {len(text)} bytes; the format's cap "
            f"is {HEADER_LIMIT_BYTES}. Write fewer tensors to one file."
        )
    return text


def _blocks(
    name: str, kind: TensorType, made: Array | Iterator[Array]
) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a tensor, known in the end to be whole."""
    if isinstance(made, np.ndarray):
        yield _contents(name, kind, made)
        return
    rows = 0
    for block in made:
        whole = block.shape == kind.shape
        part = kind if whole else kind.with_shape((*block.shape[:1], *kind.shape[1:]))
        rows += part.shape[0] if part.shape else 1
        yield _contents(name, part, block)
    expected = kind.shape[0] if kind.shape else 1
    if rows != expected:
        raise TypeMismatch(
            f"tensor '{name}': expected {kind}, the producer's blocks have {rows} rows"
        )


def _contents(name: str, kind: TensorType, array: Array) -> NDArray[np.uint8]:
    if array.dtype != kind.dtype.numpy or array.shape != kind.shape:
        raise TypeMismatch(
            f"tensor '{name}': expected {kind}, the producer returned {array.dtype} {array.shape}"
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
