"""The kernel cache: what is read is what was written, and damage counts as absence."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyc.backends.kernel_cache import CompiledKernel, KernelCache, TensorMapLayout

KERNEL = CompiledKernel(
    cubin=b"\x7fELF\n\n\x00code\n",
    entry="f",
    shared_bytes=8200,
    block_threads=128,
    pdl=True,
    parameters=((0, 8), (48, 128)),
    tensor_maps=(TensorMapLayout(box=(16, 64), swizzle=3, element_type=10),),
)


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "not" / "there" / "yet")


def entry_of(cache: KernelCache) -> Path:
    (path,) = (item for item in cache.folder.rglob("*") if item.is_file())
    return path


def test_round_trip_leaves_one_file(cache: KernelCache) -> None:
    key = cache.key("a", "b")
    assert cache.read(key) is None
    cache.write(key, KERNEL)
    cache.write(key, KERNEL)
    assert cache.read(key) == KERNEL
    assert entry_of(cache).name == f"{key}.kernel"


def test_keys_depend_on_every_part_and_on_where_parts_end(cache: KernelCache) -> None:
    assert (
        len({cache.key("a", "b"), cache.key("ab"), cache.key("a", "c"), cache.key("", "ab")}) == 4
    )


@pytest.mark.parametrize("position", [0, 70, -1], ids=["digest", "fields", "code"])
def test_damaged_entry_counts_as_absent(cache: KernelCache, position: int) -> None:
    key = cache.key("a")
    cache.write(key, KERNEL)
    data = bytearray(entry_of(cache).read_bytes())
    data[position] ^= 1
    entry_of(cache).write_bytes(bytes(data))
    assert cache.read(key) is None
    cache.write(key, KERNEL)
    assert cache.read(key) == KERNEL


def test_truncated_entry_counts_as_absent(cache: KernelCache) -> None:
    key = cache.key("a")
    cache.write(key, KERNEL)
    path = entry_of(cache)
    path.write_bytes(path.read_bytes()[:20])
    assert cache.read(key) is None


def test_entry_under_another_name_counts_as_absent(cache: KernelCache) -> None:
    key, other = cache.key("a"), cache.key("b")
    cache.write(key, KERNEL)
    path = cache.folder / other[:2] / f"{other}.kernel"
    path.parent.mkdir(parents=True, exist_ok=True)
    entry_of(cache).rename(path)
    assert cache.read(other) is None
