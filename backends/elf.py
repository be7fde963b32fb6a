"""Reads the parameters of a kernel from its cubin (an ELF file), without NVIDIA's tools."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from policyc.backends.errors import CubinError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MAGIC = b"\x7fELF\x02\x01"

# Attribute formats of .nv.info: no value, byte, half word, or a length and as many bytes.
_SIZED_FORMAT = 4
# EIATTR_KPARAM_INFO: u32 index, u16 ordinal, u16 offset, u32 whose upper 14 bits are the size.
# Found by comparing with `cuobjdump -elf` (CUDA 12.9 and 13.4).
_PARAMETER_INFO = 0x17
_PARAMETER = struct.Struct("<IHHI")
_SIZE_SHIFT = 18


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    data: bytes


def kernel_parameters(cubin: bytes, entry: str) -> tuple[tuple[int, int], ...]:
    """(offset, size) in bytes of each parameter of `entry`, in order.

    Raises:
        CubinError: not a cubin, or no such kernel in it.
    """
    wanted = f".nv.info.{entry}"
    names: list[str] = []
    for section in _sections(cubin):
        if section.name == wanted:
            return _parameters(section.data, entry)
        names.append(section.name)
    kernels = ", ".join(
        name.removeprefix(".nv.info.") for name in names if name.startswith(".nv.info.")
    )
    raise CubinError(f"the cubin has no kernel {entry}; it has {kernels or 'none'}.")


def _parameters(data: bytes, entry: str) -> tuple[tuple[int, int], ...]:
    found: dict[int, tuple[int, int]] = {}
    for attribute, value in _attributes(data):
        if attribute == _PARAMETER_INFO:
            if len(value) != _PARAMETER.size:
                raise CubinError(f"kernel {entry}: a parameter record has {len(value)} bytes.")
            _, ordinal, offset, packed = _PARAMETER.unpack(value)
            found[ordinal] = (offset, packed >> _SIZE_SHIFT)
    if sorted(found) != list(range(len(found))):
        raise CubinError(f"kernel {entry}: parameter records for {sorted(found)} only.")
    return tuple(found[ordinal] for ordinal in sorted(found))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + 4 <= len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if kind == _SIZED_FORMAT:
            yield attribute, data[position : position + size]
            position += size


def _sections(cubin: bytes) -> Iterator[_Section]:
    if len(cubin) < _HEADER.size or not cubin.startswith(_MAGIC):
        raise CubinError(f"{len(cubin)} bytes that are no 64-bit ELF file.")
    header = _HEADER.unpack_from(cubin)
    table, entry_size, count, names_index = header[6], header[11], header[12], header[13]
    if entry_size != _SECTION.size or table + count * entry_size > len(cubin):
        raise CubinError(f"the ELF file of {len(cubin)} bytes is cut off.")
    records = [_SECTION.unpack_from(cubin, table + index * entry_size) for index in range(count)]
    if names_index >= count:
        raise CubinError("the ELF file has no section names.")
    _, _, _, _, start, size, *_ = records[names_index]
    names = cubin[start : start + size]
    for name, _, _, _, start, size, *_ in records:
        text = names[name : names.find(b"\0", name)].decode("ascii", "replace")
        yield _Section(text, cubin[start : start + size])
