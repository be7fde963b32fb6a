"""Safetensors: what is read, what is refused and with which words, and what is written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from policyc.compiler.ir.errors import TensorFileError, TypeMismatch
from policyc.compiler.ir.tensor_file import (
    ALIGNMENT_BYTES,
    HEADER_LIMIT_BYTES,
    TensorFile,
    write_tensors,
)
from policyc.compiler.ir.types import Array, DType, TensorType


def encoded(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refused(path: Path, content: bytes, match: str) -> str:
    path.write_bytes(content)
    with pytest.raises(TensorFileError, match=match) as caught:
        TensorFile.open(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


@pytest.fixture
def arrays() -> dict[str, Array]:
    generator = np.random.default_rng(1)
    floats = generator.normal(size=(3, 5))
    return {
        "f64": floats,
        "f32": floats.astype(np.float32),
        "bf16": floats.astype(ml_dtypes.bfloat16),
        "i64": np.arange(-2, 4),
        "i32": np.array(7, np.int32),
        "u8": np.arange(3, dtype=np.uint8),
        "flags": np.array([[True, False, True]]),
        "empty": np.zeros((2, 0), np.float32),
    }


def write(path: Path, arrays: dict[str, Array], metadata: dict[str, str] | None = None) -> str:
    entries = [(name, TensorType(DType.of(a.dtype), a.shape)) for name, a in arrays.items()]
    return write_tensors(path, entries, arrays.__getitem__, metadata or {})


def test_the_digest_taken_while_writing_is_the_files(path: Path, arrays: dict[str, Array]) -> None:
    assert write(path, arrays, {"a": "1"}) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_reads_what_it_writes(path: Path, arrays: dict[str, Array]) -> None:
    write(path, arrays, {"b": "2", "a": "1"})
    file = TensorFile.open(path)
    assert file.names == tuple(arrays)
    assert file.metadata == {"a": "1", "b": "2"}
    assert file.size_bytes == path.stat().st_size
    for name, array in arrays.items():
        read = file.read(name)
        assert read.dtype == array.dtype and read.shape == array.shape
        assert read.tobytes() == array.tobytes()
        assert not read.flags.writeable
        assert file.entries[name].type == TensorType(DType.of(array.dtype), array.shape)


def test_the_official_library_reads_what_it_writes(path: Path, arrays: dict[str, Array]) -> None:
    write(path, arrays, {"made": "by policyc"})
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"made": "by policyc"}
    read = safetensors.numpy.load_file(path)
    assert {name for name in read if not name.startswith("_pad.")} == set(arrays)
    for name, array in arrays.items():
        assert read[name].tobytes() == array.tobytes() and read[name].shape == array.shape


def test_it_reads_what_the_official_library_writes(path: Path) -> None:
    arrays = {
        "f16": np.array([1.5, -2.0], np.float16),
        "i16": np.array([-3], np.int16),
        "i8": np.array([-4, 5, 6], np.int8),
        "u16": np.array([65535], np.uint16),
        "u32": np.array([2**32 - 1], np.uint32),
        "u64": np.array([2**64 - 1], np.uint64),
        "f64": np.array([[0.1]]),
    }
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    file = TensorFile.open(path)
    for name, array in arrays.items():
        assert file.read(name).dtype == array.dtype
        np.testing.assert_array_equal(file.read(name), array)
    with pytest.raises(TypeMismatch):
        file.entries["f16"].type  # noqa: B018


@pytest.mark.parametrize(
    ("code", "dtype"),
    [("F8_E4M3", ml_dtypes.float8_e4m3fn), ("F8_E5M2", ml_dtypes.float8_e5m2)],
)
def test_eight_bit_floats(path: Path, code: str, dtype: type) -> None:
    values = np.array([1.5, -2.0, 0.0], dtype)
    path.write_bytes(encoded({"x": entry(code, [3], 0, 3)}, values.tobytes()))
    np.testing.assert_array_equal(TensorFile.open(path).read("x"), values)


def test_every_tensor_is_aligned_in_the_file(path: Path, arrays: dict[str, Array]) -> None:
    """case 9: weights that we write are aligned, whatever their sizes."""
    write(path, arrays)
    file = TensorFile.open(path)
    assert [name for name in file.names if file.entries[name].begin % ALIGNMENT_BYTES] == []
    padding = [name for name in file.entries if name.startswith("_pad.")]
    assert padding == [f"_pad.{index}" for index in range(len(padding))] and padding


def test_unaligned_tensors_read_the_same(path: Path) -> None:
    """case 9: a 3-byte tensor before a float32 one, and an odd header length."""
    values = np.array([1.0, -2.5], np.float32)
    header = json.dumps({"a": entry("U8", [3], 0, 3), "b": entry("F32", [2], 3, 11)}).encode()
    for padding in range(8):
        path.write_bytes(encoded(header + b" " * padding, b"\1\2\3" + values.tobytes()))
        read = TensorFile.open(path).read("b")
        np.testing.assert_array_equal(read, values)
        assert read.flags.aligned and not read.flags.writeable


def test_aligned_tensors_are_views_of_the_mapped_file(path: Path) -> None:
    write(path, {"x": np.ones(1000, np.float32)})
    file = TensorFile.open(path)
    assert np.shares_memory(file.read("x"), file.raw("x"))


def test_bfloat16_keeps_its_bits(path: Path) -> None:
    """case 31: special values survive, and conversion rounds to nearest even."""
    bits = np.array([0x3F80, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0x0001, 0x7F7F], np.uint16)
    write(path, {"x": bits.view(ml_dtypes.bfloat16)})
    read = TensorFile.open(path).read("x")
    np.testing.assert_array_equal(read.view(np.uint16), bits)
    exact = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(read.astype(np.float32), exact)
    assert np.isnan(read.astype(np.float32)[4])
    halves = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)
    rounded = halves.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(rounded, [0x3F80, 0x3F82, 0x3F81])


def test_a_file_cut_short_says_both_sizes(path: Path) -> None:
    """case 5: minus the last byte, cut in the header, empty."""
    write(path, {"x": np.ones((4, 4), np.float32)})
    whole = path.read_bytes()
    assert f"expected {len(whole)} bytes, got {len(whole) - 1}" in refused(
        path, whole[:-1], r"cut short.*\(1 missing\)"
    )
    refused(path, whole[:40], "cut short within the header: expected at least 256 bytes, got 40")
    refused(path, b"", "expected at least 8 bytes, got 0")
    refused(path, b"1234567", "expected at least 8 bytes, got 7")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git-lfs pointer.*pull"),
        (b"\n<!DOCTYPE html><html><body>404</body></html>", "web page.*download the file again"),
        (b"<html>rate limited</html>", "web page"),
        (b"PK\x03\x04" + bytes(60), "zip archive.*can run code; convert"),
        (pickle.dumps({"a": [1.0] * 20}), "pickle.*can run code; convert"),
        (b'{"metadata": {}, "weight_map": {}}', "plain JSON"),
        (b"GGUF\x03\0\0\0\0\0\0\0", "GGUF"),
        (bytes(64), "it starts with b"),
    ],
)
def test_other_files_with_that_name_are_recognised(path: Path, content: bytes, words: str) -> None:
    """case 6: recognised by the first bytes, without allocating the bogus header length."""
    refused(path, content, f"(?s)not a safetensors file.*{words}")


def test_a_header_above_the_cap_is_refused_at_once(path: Path) -> None:
    """case 7: the message states cap and size, and nothing is parsed."""
    length = HEADER_LIMIT_BYTES + 1
    with path.open("wb") as file:
        file.write(struct.pack("<Q", length) + b"{}")
        file.truncate(8 + length)
    start = time.monotonic()
    with pytest.raises(TensorFileError, match=f"{length} bytes; the format's cap is 100000000"):
        TensorFile.open(path)
    assert time.monotonic() - start < 1


def test_the_writer_refuses_a_header_above_the_cap(path: Path) -> None:
    """case 7: such a file is never written."""
    huge = {"note": "x" * HEADER_LIMIT_BYTES}
    with pytest.raises(TensorFileError, match="the format's cap is 100000000"):
        write(path, {"x": np.ones(1, np.float32)}, huge)
    assert not list(path.parent.iterdir())


def test_surplus_bytes_are_refused(path: Path) -> None:
    """case 8: the surplus is named."""
    write(path, {"x": np.ones(4, np.float32)})
    refused(path, path.read_bytes() + bytes(16), "16 surplus bytes after the last tensor")


ONE = entry("F32", [2], 0, 8)


@pytest.mark.parametrize(
    ("header", "data", "match"),
    [
        (b'{"x": ', b"", "not valid JSON"),
        (b'{"\xff": 1}', b"", "not valid JSON"),
        (b'{"a":' * 20000, b"", "not valid JSON"),
        (b'{"x": 1, "x": 2}', b"", "'x' occurs twice"),
        ({"x": 3}, b"", "expected dtype, shape and data_offsets, got int"),
        ({"x": ONE | {"more": 1}}, bytes(8), "expected dtype, shape and data_offsets"),
        ({"__metadata__": {"a": 1}, "x": ONE}, bytes(8), "must map names to strings"),
        ({"x": entry("F4", [2], 0, 1)}, b"\0", "'F4' is not supported; known: F64, F32"),
        ({"x": entry("F32", [-2], 0, 8)}, bytes(8), "shape must be"),
        ({"x": entry("F32", [2.0], 0, 8)}, bytes(8), "shape must be"),  # type: ignore[list-item]
        ({"x": entry("F32", [True], 0, 4)}, bytes(4), "shape must be"),
        ({"x": entry("F32", [1] * 40, 0, 4)}, bytes(4), "at most 32 sizes"),
        ({"x": entry("F32", [2**62, 2**62], 0, 8)}, bytes(8), "overflows"),
        ({"x": entry("F32", [0, 2**62, 2**62], 0, 0)}, b"", "overflows"),
        ({"x": entry("F32", [3], 0, 8)}, bytes(8), "takes 12 bytes, but data_offsets span 8"),
        ({"x": entry("F32", [2], -8, 0)}, bytes(8), "two ascending byte offsets"),
        ({"x": entry("F32", [2], 8, 0)}, bytes(8), "two ascending byte offsets"),
        ({"x": ONE, "y": entry("F32", [2], 4, 12)}, bytes(12), "'y' overlaps 'x'"),
        ({"x": ONE, "y": ONE}, bytes(8), "'y' overlaps 'x'"),
        ({"x": ONE, "y": entry("F32", [1], 12, 16)}, bytes(16), "'y' leaves a hole after 'x'"),
        ({"x": entry("F32", [2], 4, 12)}, bytes(12), "'x' leaves a hole after the header"),
        ({"x": entry("F32", [2], 8, 16)}, bytes(8), "leaves a hole"),
    ],
)
def test_damaged_headers_are_refused(path: Path, header: object, data: bytes, match: str) -> None:
    refused(path, encoded(header, data), match)


@settings(derandomize=True)
@given(content=st.binary(max_size=64), brace=st.booleans())
def test_no_bytes_do_more_than_raise_the_one_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, brace: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(encoded(b"{" + content) if brace else content)
    with contextlib.suppress(TensorFileError):
        assert TensorFile.open(path).names == ()


def test_a_file_that_is_not_there_or_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(TensorFileError, match="No such file"):
        TensorFile.open(tmp_path / "absent.safetensors")
    with pytest.raises(TensorFileError, match="not a regular file"):
        TensorFile.open(tmp_path)


def test_an_unknown_name_lists_those_that_are_there(path: Path) -> None:
    write(path, {"a": np.ones(1, np.float32), "b": np.ones(1, np.float32)})
    with pytest.raises(TensorFileError, match="no tensor 'c'; the file has 2: a, b"):
        TensorFile.open(path).read("c")


def test_bool_bytes_are_checked(path: Path) -> None:
    path.write_bytes(encoded({"x": entry("BOOL", [2], 0, 2)}, b"\1\2"))
    with pytest.raises(TensorFileError, match="BOOL but holds the byte 2"):
        TensorFile.open(path).read("x")


def test_the_bytes_depend_on_the_arguments_alone(path: Path, arrays: dict[str, Array]) -> None:
    write(path, arrays, {"b": "2", "a": "1"})
    first = path.read_bytes()
    write(path, arrays, {"a": "1", "b": "2"})
    assert path.read_bytes() == first


def test_a_failing_producer_leaves_no_file(path: Path) -> None:
    kind = TensorType(DType.F32, (2,))
    with pytest.raises(TypeMismatch, match=r"expected f32\[2\].*float64"):
        write_tensors(path, [("x", kind)], lambda _: np.ones(2), {})
    with pytest.raises(TypeMismatch, match=r"\(3,\)"):
        write_tensors(path, [("x", kind)], lambda _: np.ones(3, np.float32), {})
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(
    ("names", "fault"),
    [(("x", "x"), "given twice"), (("_pad.1",), "reserved"), (("__metadata__",), "reserved")],
)
def test_names_that_cannot_be_written(path: Path, names: tuple[str, ...], fault: str) -> None:
    kind = TensorType(DType.F32, (2,))
    with pytest.raises(TensorFileError, match=fault):
        write_tensors(path, [(name, kind) for name in names], lambda _: np.ones(2, np.float32), {})


def test_blocks_of_rows_give_the_same_file(path: Path, arrays: dict[str, Array]) -> None:
    digest = write(path, arrays)
    entries = [(name, TensorType(DType.of(a.dtype), a.shape)) for name, a in arrays.items()]

    def rows(name: str) -> Iterator[Array]:
        whole = arrays[name]
        yield from (whole[i : i + 1] for i in range(len(whole))) if whole.ndim else (whole,)

    assert write_tensors(path, entries, rows, {}) == digest


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(1, 2)], "expected f32.3,2., the producer's blocks have 1 rows"),
        ([(2, 2), (2, 2)], "the producer's blocks have 4 rows"),
        ([(3, 1)], "expected f32.3,2., the producer returned float32 .3, 1."),
    ],
)
def test_blocks_must_make_up_the_tensor(
    path: Path, shapes: list[tuple[int, int]], message: str
) -> None:
    kind = TensorType(DType.F32, (3, 2))
    with pytest.raises(TypeMismatch, match=message):
        write_tensors(path, [("x", kind)], lambda _: (np.ones(s, np.float32) for s in shapes), {})
    assert not path.exists()
