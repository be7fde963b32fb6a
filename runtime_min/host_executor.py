"""Runs a bundle on the CPU: the numpy interpreter of its graph. Correct, small, slow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.interpreter import Interpreter
from policyc.compiler.ir.types import Array, DType
from policyc.runtime_min.bundle import Bundle

WEIGHT_CACHE_BYTES = 4 << 30
"""Most memory for float32 working copies of weights."""


class WeightCache:
    """Weights by graph name (`@name`), mapped from the bundle's files when first asked for.

    bfloat16 weights are handed out as float32 copies, kept up to `capacity_bytes` with the least
    recently used dropped first. One whose copy would take a quarter of that (an embedding table, of
    which a few rows are read) is handed out as it is stored.
    """

    def __init__(self, bundle: Bundle, capacity_bytes: int = WEIGHT_CACHE_BYTES) -> None:
        self._bundle = bundle
        self._capacity_bytes = capacity_bytes
        self._copies: OrderedDict[str, Array] = OrderedDict()
        self._mapped: dict[str, Array] = {}
        self.cached_bytes = 0

    def __call__(self, name: str) -> Array:
        """The array of a weight; raises BundleError for an unknown name."""
        copy = self._copies.get(name)
        if copy is not None:
            self._copies.move_to_end(name)
            return copy
        if name not in self._mapped:
            self._mapped[name] = self._bundle.map_weight(name.removeprefix("@"))
        stored = self._mapped[name]
        size = stored.size * DType.F32.size_bytes
        if stored.dtype != DType.BF16.numpy or size > self._capacity_bytes // 4:
            return stored
        while self.cached_bytes + size > self._capacity_bytes:
            _, dropped = self._copies.popitem(last=False)
            self.cached_bytes -= dropped.nbytes
        copy = stored.astype(np.float32)
        self._copies[name] = copy
        self.cached_bytes += copy.nbytes
        return copy

    def clear(self) -> None:
        """Drops copies and mappings."""
        self._copies.clear()
        self._mapped.clear()
        self.cached_bytes = 0


class HostExecutor:
    """The CPU executor. Not thread-safe; `Policy` serialises calls."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._weights = WeightCache(bundle)
        self._graphs: dict[int, Graph] = {}

    def run(
        self, batch: int, inputs: Mapping[str, Array], wanted: Sequence[str]
    ) -> dict[str, Array]:
        """Values by name, as arrays of the caller's own.

        Args:
            batch: a batch bucket of the bundle.
            inputs: every graph input, of exactly its type.
            wanted: graph outputs or named values.
        """
        if batch not in self._graphs:
            self._graphs[batch] = self._bundle.graph(batch)
        values = Interpreter(self._graphs[batch], self._weights).run(inputs, wanted)
        return {name: array.copy() for name, array in values.items()}

    def close(self) -> None:
        """Releases cached weights; idempotent."""
        self._weights.clear()
        self._graphs.clear()
