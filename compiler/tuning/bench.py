"""One problem on a device: its operands, and checks and timings of its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from policyc.backends.views import Work
from policyc.compiler.ir.types import Array
from policyc.compiler.tuning.candidates import ARENA, BUCKET, Layout, ReadyCandidate
from policyc.compiler.tuning.check import Expected
from policyc.compiler.tuning.operands import HostOperands
from policyc.runtime_min.arguments import Placement, pack_launch
from policyc.runtime_min.driver_interface import Driver, KernelLaunch
from policyc.runtime_min.graph_timing import capture_graph

FEWEST_COPIES, MOST_COPIES = 6, 128
SHORTEST_RUN = 48
"""Runs of a candidate in one graph, at least: the graph's own start hardly counts."""

_POISON = 0xFF


@dataclass(slots=True, kw_only=True)
class ProblemBench:
    """Operands of one problem in device memory. Use inside `driver.current()`; `close` frees all.

    Weights lie there `copies` times, together larger than the L2 cache, and runs take them in turn:
    each reads its weights from memory, as in a policy that has many layers.
    """

    driver: Driver
    work: Work
    layout: Layout
    copies: int
    _resources: ExitStack = field(default_factory=ExitStack)
    _arena: int = 0
    _region: int = 0

    def upload(self, operands: HostOperands) -> None:
        """Allocate, and copy the operands; raises DeviceError if the memory does not suffice."""
        self._arena = self._allocate(self.layout.arena_bytes, "operands")
        self._region = self._allocate(self.layout.region_bytes * self.copies, "weights")
        for base, array in operands.arrays.items():
            data = np.ascontiguousarray(array).view(np.uint8)
            for address in self._places(base):
                self.driver.copy_to_device(address, data)
            self.driver.synchronize()

    def close(self) -> None:
        """Free everything; idempotent."""
        self._resources.close()

    def abandon(self) -> None:
        """Forget everything without a call to a device that no longer answers."""
        self._resources.pop_all()

    def check(self, candidate: ReadyCandidate, expected: Expected) -> str:
        """Run a candidate once on poisoned results: what is wrong with them, or nothing."""
        with ExitStack() as stack:
            graph = self._graph(stack, candidate, 1)
            self._poison()
            self.driver.launch_graph(graph)
            self.driver.synchronize()
            return expected.fault([self._read(index) for index in range(len(self.work.results))])

    def capture(self, candidate: ReadyCandidate) -> int:
        """A graph of `runs` dependent runs over the copies of the weights; freed by `close`."""
        return self._graph(self._resources, candidate, self.runs)

    @property
    def runs(self) -> int:
        """Runs in a captured graph: whole rounds over the copies."""
        return self.copies * max(1, -(-SHORTEST_RUN // self.copies))

    def _graph(self, stack: ExitStack, candidate: ReadyCandidate, runs: int) -> int:
        functions = self._load(stack, candidate)
        rounds = [self._pack(candidate, functions, copy) for copy in range(min(self.copies, runs))]
        launches = [item for run in range(runs) for item in rounds[run % len(rounds)]]
        graph = capture_graph(self.driver, launches)
        stack.callback(self.driver.destroy_graph, graph)
        return graph

    def _load(self, stack: ExitStack, candidate: ReadyCandidate) -> dict[str, int]:
        """Kernel id -> function."""
        plan, cubins = candidate.plan, candidate.cubins
        assert plan is not None and cubins is not None, "a candidate that failed has no launches"
        functions: dict[str, int] = {}
        for name, kernel in plan.kernels.items():
            module = self.driver.load_module(cubins[kernel.file], kernel.file)
            stack.callback(self.driver.unload_module, module)
            functions[name] = self.driver.function(module, kernel.entry, kernel.shared_bytes)
        return functions

    def _pack(
        self, candidate: ReadyCandidate, functions: dict[str, int], copy: int
    ) -> Sequence[KernelLaunch]:
        """The launches of one run, on a copy of the weights."""
        plan = candidate.plan
        assert plan is not None, "a candidate that failed has no launches"
        base = self._region + copy * self.layout.region_bytes
        weights = {
            name.removeprefix("@"): base + offset
            for name, offset in self.layout.weight_offsets.items()
        }
        placement = Placement(arenas={ARENA: self._arena}, weights=weights)
        return [
            pack_launch(
                launch,
                plan.kernels[launch.kernel],
                functions[launch.kernel],
                placement,
                self.driver.encode_tensor_map,
            )
            for launch in plan.buckets[BUCKET].launches
        ]

    def _places(self, base: str) -> Sequence[int]:
        """Every address of a buffer or weight."""
        if base in self.layout.buffers:
            return (self._arena + self.layout.buffers[base].offset,)
        first = self._region + self.layout.weight_offsets[base]
        return [first + copy * self.layout.region_bytes for copy in range(self.copies)]

    def _poison(self) -> None:
        """Bytes that no kernel writes, NaN in floats and -1 in integers; counters are zero."""
        places = [self.layout.buffers[view.base] for view in self.work.results]
        for place in (*places, self.layout.scratch):
            if place.size:
                self.driver.fill(self._arena + place.offset, _POISON, place.size)
        counters = self.layout.counters
        if counters.size:
            self.driver.fill(self._arena + counters.offset, 0, counters.size)

    def _read(self, index: int) -> Array:
        view = self.work.results[index]
        place = self.layout.buffers[view.base]
        memory = np.empty(place.size, np.uint8)
        self.driver.copy_to_host(memory, self._arena + place.offset)
        self.driver.synchronize()
        return HostOperands(arrays={view.base: memory.view(view.dtype.numpy)}).view(view)

    def _allocate(self, size: int, purpose: str) -> int:
        if size == 0:
            return 0
        address = self.driver.allocate(size, purpose)
        self._resources.callback(self.driver.free, address)
        return address


def copies_of(layout: Layout, l2_bytes: int) -> int:
    """Copies of the weights: 6 or more, together twice the L2 cache if 128 suffice for that."""
    if not layout.region_bytes:
        return 1
    wanted = -(-2 * l2_bytes // layout.region_bytes)
    return min(max(FEWEST_COPIES, wanted), MOST_COPIES)
