"""Random tensors, fast and the same everywhere, written straight into a safetensors file.

A value is a quantile of the normal distribution, looked up by 16 random bits: a table of 65,536
entries replaces the sampling, and the bits of a block depend on seed, tensor name and block number
alone, so that blocks can be made in any order by any number of threads.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from policyc.compiler.ir.types import DType
from policyc.compiler.synth.tensors import TensorSpec

BLOCK_ELEMENTS = 1 << 20
_QUANTILES = 1 << 16
_SAFETENSORS_NAMES = {DType.BF16: "BF16", DType.F32: "F32"}


def write_random_tensors(
    path: Path, specs: Sequence[TensorSpec], seed: int, metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file with one random tensor a spec, in their order.

    Memory stays at a few blocks a thread, whatever the file's size.
    """
    header = safetensors_header([(spec.name, spec.dtype, spec.shape) for spec in specs], metadata)
    quantiles = normal_quantiles()
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(spec.size_bytes for spec in specs))
        file.flush()
        writer = _BlockWriter(file.fileno(), seed, quantiles)
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            done = []
            offset = len(header)
            for spec in specs:
                starts = range(0, spec.element_count, BLOCK_ELEMENTS)
                done += [pool.submit(writer.write, spec, start, offset) for start in starts]
                offset += spec.size_bytes
            for future in done:
                future.result()


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.float32]]) -> None:
    """Write a small safetensors file of float32 arrays, in the order of the mapping."""
    header = safetensors_header([(name, DType.F32, a.shape) for name, a in arrays.items()], {})
    path.write_bytes(header + b"".join(a.astype("<f4").tobytes() for a in arrays.values()))


def safetensors_header(
    tensors: Sequence[tuple[str, DType, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """Length and JSON header, padded with spaces so that the data starts at a multiple of 8."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + math.prod(shape) * dtype.size_bytes
        entries[name] = {
            "dtype": _SAFETENSORS_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def normal_quantiles() -> NDArray[np.float64]:
    """The standard normal distribution as 65,536 equally likely values, variance 1."""
    half = [NormalDist().inv_cdf((index + 0.5) / _QUANTILES) for index in range(_QUANTILES // 2)]
    values = np.array(half + [-value for value in reversed(half)])
    scaled: NDArray[np.float64] = values / values.std()
    return scaled


def random_block(
    spec: TensorSpec, seed: int, block: int, quantiles: NDArray[np.float64]
) -> NDArray[np.generic]:
    """The tensor's elements from `block * BLOCK_ELEMENTS`, flat, at most BLOCK_ELEMENTS of them."""
    count = min(BLOCK_ELEMENTS, spec.element_count - block * BLOCK_ELEMENTS)
    digest = hashlib.sha256(f"{seed} {block} {spec.name}".encode()).digest()
    entropy = int.from_bytes(digest, "little")
    raw = np.random.SFC64(np.random.SeedSequence(entropy)).random_raw(-(-count // 4))
    bits = np.asarray(raw, dtype="<u8").view("<u2")[:count]
    table = (quantiles * spec.spread + spec.mean).astype(spec.dtype.numpy)
    return np.take(table, bits)


class _BlockWriter:
    """Writes blocks of tensors at their place in an open file."""

    def __init__(self, descriptor: int, seed: int, quantiles: NDArray[np.float64]) -> None:
        self._descriptor = descriptor
        self._seed = seed
        self._quantiles = quantiles

    def write(self, spec: TensorSpec, start: int, tensor_offset: int) -> None:
        block = random_block(spec, self._seed, start // BLOCK_ELEMENTS, self._quantiles)
        data = memoryview(block.view(np.uint8).data)
        offset = tensor_offset + start * spec.dtype.size_bytes
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            data, offset = data[written:], offset + written
