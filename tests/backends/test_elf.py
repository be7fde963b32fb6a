"""Parameter records of a cubin, in a file made here."""

from __future__ import annotations

import struct

import pytest

from policyc.backends.elf import kernel_parameters
from policyc.backends.errors import CubinError


def record(ordinal: int, offset: int, size: int) -> bytes:
    """EIATTR_KPARAM_INFO as ptxas writes it (the low bits of the last word are flags)."""
    return struct.pack("<BBHIHHI", 4, 0x17, 12, 0, ordinal, offset, size << 18 | 0x1F000)


def elf(**sections: bytes) -> bytes:
    """A 64-bit ELF file with the named sections and their names."""
    names, offsets = b"\0", []
    for name in [*sections, ".shstrtab"]:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    contents = [*sections.values(), names]
    body, table = b"", struct.pack("<IIQQQQIIQQ", *[0] * 10)
    for name_offset, content in zip(offsets, contents, strict=True):
        place = (64 + len(body), len(content))
        table += struct.pack("<IIQQQQIIQQ", name_offset, 1, 0, 0, *place, 0, 0, 1, 0)
        body += content
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01",
        *(2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(contents) + 1, len(contents)),
    )
    return header + body + table


def info(*records: bytes) -> bytes:
    """Records with a value-less and a half-word attribute between them, as in real files."""
    return b"\x01\x35\x00\x00" + b"\x03\x1b\xff\x00".join(records)


def test_parameters_in_order_of_ordinal() -> None:
    section = info(record(2, 176, 4), record(0, 0, 8), record(1, 48, 128))
    file = elf(**{".nv.info": b"", ".nv.info.f": section, ".nv.info.g": info()})
    assert kernel_parameters(file, "f") == ((0, 8), (48, 128), (176, 4))
    assert kernel_parameters(file, "g") == ()


def test_no_such_kernel_lists_those_there_are() -> None:
    with pytest.raises(CubinError, match="the cubin has no kernel h; it has f, g"):
        kernel_parameters(elf(**{".nv.info.f": b"", ".nv.info.g": b""}), "h")


def test_missing_ordinal() -> None:
    file = elf(**{".nv.info.f": info(record(0, 0, 8), record(2, 8, 8))})
    with pytest.raises(CubinError, match=r"kernel f: parameter records for \[0, 2\] only"):
        kernel_parameters(file, "f")


def test_record_of_another_size() -> None:
    file = elf(**{".nv.info.f": info(struct.pack("<BBHQ", 4, 0x17, 8, 0))})
    with pytest.raises(CubinError, match="kernel f: a parameter record has 8 bytes"):
        kernel_parameters(file, "f")


def test_not_an_elf_file() -> None:
    with pytest.raises(CubinError, match="3 bytes that are no 64-bit ELF file"):
        kernel_parameters(b"PTX", "f")
    with pytest.raises(CubinError, match="no 64-bit ELF file"):
        kernel_parameters(b"\x7fELF\x01\x01" + bytes(100), "f")


def test_cut_off() -> None:
    file = elf(**{".nv.info.f": info(record(0, 0, 8))})
    with pytest.raises(CubinError, match="is cut off"):
        kernel_parameters(file[:-8], "f")
