"""Runs a bundle on a device: everything is prepared at load, an inference is one graph launch.

After `load` nothing is allocated on the device and nothing is captured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np

from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.memory import COUNTERS_ARENA
from policyc.compiler.ir.types import Array, TensorType
from policyc.runtime_min.arguments import Placement, pack_launch
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.compatibility import check_device, check_memory
from policyc.runtime_min.driver_interface import Bytes, Driver, KernelLaunch
from policyc.runtime_min.errors import BundleError, PlanError
from policyc.runtime_min.graph_timing import ReplayCosts, capture_graph, time_replays
from policyc.runtime_min.host_executor import WeightCache
from policyc.runtime_min.plan import (
    Bucket,
    Buffer,
    DescriptorArgument,
    Launch,
    Plan,
    WeightArgument,
)
from policyc.runtime_min.report import Report
from policyc.runtime_min.signature import Signature
from policyc.runtime_min.weight_upload import plan_region, upload_weights

_POISON = 0xFF
"""A byte that makes NaN in every float type."""

_STAGING_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """A tensor on the device and its page-locked place on the host."""

    address: int
    staging: Bytes
    array: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadyBucket:
    """A batch size, ready to run; `launches` and `packed` agree in order."""

    graph: int
    launches: tuple[Launch, ...]
    packed: tuple[KernelLaunch, ...]
    inputs: Mapping[str, _Slot]
    outputs: Mapping[str, _Slot]
    values: Mapping[str, Buffer]


class DeviceExecutor:
    """The device executor. Not thread-safe; `Policy` serialises calls."""

    def __init__(self, bundle: Bundle, driver: Driver, debug: bool) -> None:
        """Use `load`, which prepares everything and cleans up if that fails."""
        self._bundle = bundle
        self._driver = driver
        self._debug = debug
        self._resources = ExitStack()
        self._arenas: dict[str, int] = {}
        self._arena_bytes: dict[str, int] = {}
        self._buckets: dict[int, _ReadyBucket] = {}
        self._graphs: dict[int, Graph] = {}
        self._report_weights = WeightCache(bundle)
        self._unfinished = False
        self._closed = False

    @classmethod
    def load(
        cls, bundle: Bundle, driver: Driver, signature: Signature, debug: bool = False
    ) -> DeviceExecutor:
        """Check, allocate, upload, capture and run once. Takes over `driver`, also when it fails.

        Args:
            bundle: the opened bundle.
            driver: an open device; closed by `close`.
            signature: of the bundle's graph; the plan must have the same inputs and outputs.
            debug: fill the arenas, but the counters, with NaN before every run, so that a read of
                memory that nothing wrote shows in the results.

        Raises:
            IncompatibleDeviceError, DeviceMemoryError: before anything is allocated.
            BundleError: the plan or a kernel is damaged.
            DeviceError: a driver call failed; names the stage, node and kernel for a launch.
        """
        executor = cls(bundle, driver, debug)
        with ExitStack() as undo:
            undo.callback(executor.close)
            check_device(bundle, driver.facts)
            plan = bundle.plan(driver.facts.compute_capability)
            _check_signature(plan, signature, bundle)
            with driver.current():
                executor._prepare(plan, signature.outputs)
            undo.pop_all()
        return executor

    @property
    def driver(self) -> Driver:
        return self._driver

    def run(
        self, batch: int, inputs: Mapping[str, Array], wanted: Sequence[str]
    ) -> dict[str, Array]:
        """Values by name, as arrays of the caller's own.

        Args:
            batch: a batch bucket of the bundle.
            inputs: every graph input, of exactly its type, contiguous.
            wanted: graph outputs or named values.

        Raises:
            DeviceError: a driver call failed.
        """
        bucket = self._buckets[batch]
        direct = [name for name in wanted if name in bucket.values]
        reported = [name for name in wanted if name not in bucket.values]
        report = self._report(batch, reported, inputs) if reported else None
        fetched = dict.fromkeys([*direct, *(report.sources if report else ())])
        with self._running():
            self._start(bucket, inputs)
            values = self._fetch(bucket, [name for name in fetched if name not in inputs])
        if report is not None:
            sources = {**values, **{name: inputs[name] for name in fetched if name in inputs}}
            values = report.evaluate(self._graphs[batch], self._report_weights, sources)
        return {name: values[name] for name in wanted}

    def measure_replays(self, batch: int, count: int) -> tuple[float, ...]:
        """Device time of `count` replays on the last inputs, in microseconds, by events."""
        with self._running():
            return time_replays(self._driver, (self._buckets[batch].graph,), count)[0]

    def measure_without(
        self, batch: int, groups: Mapping[str, Callable[[Launch], bool]], count: int
    ) -> ReplayCosts:
        """What each group of launches adds to a replay: the median with all, less that without it.

        Unlike a launch timed alone, this counts what overlaps with its neighbours once. Run an
        inference first, so that memory holds sensible values; afterwards it holds junk, which the
        next `run` overwrites. Launches that write integers (row counts) are never left out. For
        each group one more graph is captured, and destroyed when it is timed.

        Args:
            batch: a batch bucket of the bundle.
            groups: name -> does a launch belong to the group? Groups may overlap.
            count: replays of each graph.

        Returns:
            The costs; groups with nothing to leave out are absent.
        """
        bucket = self._buckets[batch]
        kept = self._integer_nodes(batch)
        totals: list[float] = []
        costs: dict[str, float] = {}
        for name, belongs in groups.items():
            left = [
                packed
                for launch, packed in zip(bucket.launches, bucket.packed, strict=True)
                if launch.node in kept or not belongs(launch)
            ]
            if len(left) == len(bucket.packed):
                continue
            whole, without = self._compare(bucket.graph, left, count)
            totals.append(whole)
            costs[name] = whole - without
        total = statistics.median(totals or self.measure_replays(batch, count))
        return ReplayCosts(total_us=total, groups_us=costs)

    def close(self) -> None:
        """Waits for the device, frees everything and releases it; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._buckets.clear()
        self._report_weights.clear()
        try:
            with self._driver.current():
                self._resources.close()
        finally:
            self._driver.close()

    def _compare(
        self, graph: int, launches: Sequence[KernelLaunch], count: int
    ) -> tuple[float, float]:
        """Median replay of `graph`, and of a graph of `launches` that lives as long as this."""
        with self._running(), ExitStack() as undo:
            other = capture_graph(self._driver, launches)
            undo.callback(self._driver.destroy_graph, other)
            time_replays(self._driver, (graph, other), 1)
            whole, without = time_replays(self._driver, (graph, other), count)
        return statistics.median(whole), statistics.median(without)

    def _integer_nodes(self, batch: int) -> frozenset[str]:
        """Nodes with a result that is no float: counts and masks that other launches obey."""
        return frozenset(
            node.outputs[0].name
            for node in self._graph(batch).nodes()
            if any(not value.type.dtype.is_float for value in node.outputs)
        )

    def _graph(self, batch: int) -> Graph:
        if batch not in self._graphs:
            self._graphs[batch] = self._bundle.graph(batch)
        return self._graphs[batch]

    def _prepare(self, plan: Plan, outputs: Sequence[str]) -> None:
        region = plan_region(self._bundle.manifest, _weights_of(plan))
        self._arena_bytes = _largest_arenas(plan)
        check_memory(
            self._bundle,
            self._driver.facts,
            self._driver.free_bytes(),
            region.size_bytes,
            sum(self._arena_bytes.values()),
        )
        functions = self._load_functions(plan)
        base = self._allocate(region.size_bytes, "weights")
        upload_weights(self._driver, self._bundle, region, base)
        for name, size in self._arena_bytes.items():
            self._arenas[name] = self._allocate(size, f"arena {name}")
        self._reset_counters()
        weights = {name: base + offset for name, offset in region.offsets.items()}
        placement = Placement(arenas=self._arenas, weights=weights)
        self._resources.callback(self._driver.synchronize)
        for batch, bucket in sorted(plan.buckets.items()):
            packed = tuple(
                pack_launch(
                    launch,
                    plan.kernels[launch.kernel],
                    functions[launch.kernel],
                    placement,
                    self._driver.encode_tensor_map,
                )
                for launch in bucket.launches
            )
            self._buckets[batch] = self._ready(bucket, packed, outputs)
            self._warm(self._buckets[batch])

    def _load_functions(self, plan: Plan) -> dict[str, int]:
        """Kernel id -> function; a cubin is loaded once, however many entries are used."""
        modules: dict[str, int] = {}
        functions: dict[str, int] = {}
        for name, kernel in sorted(plan.kernels.items()):
            if kernel.file not in modules:
                module = self._driver.load_module(self._bundle.read(kernel.file), kernel.file)
                self._resources.callback(self._driver.unload_module, module)
                modules[kernel.file] = module
            functions[name] = self._driver.function(
                modules[kernel.file], kernel.entry, kernel.shared_bytes
            )
        return functions

    def _allocate(self, size: int, purpose: str) -> int:
        """Device memory that `close` frees; a null address for nothing."""
        if size == 0:
            return 0
        address = self._driver.allocate(size, purpose)
        self._resources.callback(self._driver.free, address)
        return address

    def _ready(
        self, bucket: Bucket, packed: tuple[KernelLaunch, ...], outputs: Sequence[str]
    ) -> _ReadyBucket:
        graph = capture_graph(self._driver, packed)
        self._resources.callback(self._driver.destroy_graph, graph)
        return _ReadyBucket(
            graph=graph,
            launches=bucket.launches,
            packed=packed,
            inputs=self._slots(bucket.inputs),
            outputs=self._slots({name: bucket.values[name] for name in outputs}),
            values=bucket.values,
        )

    def _slots(self, buffers: Mapping[str, Buffer]) -> dict[str, _Slot]:
        """A page-locked twin for each buffer, all of one allocation."""
        total = sum(_staging_bytes(buffer) for buffer in buffers.values())
        if total == 0:
            return {}
        memory = self._driver.allocate_pinned(total)
        self._resources.callback(self._driver.free_pinned, memory)
        slots: dict[str, _Slot] = {}
        start = 0
        for name, buffer in buffers.items():
            staging = memory[start : start + buffer.size_bytes]
            array = staging.view(buffer.dtype.numpy).reshape(buffer.shape)
            address = self._arenas[buffer.arena] + buffer.offset
            slots[name] = _Slot(address=address, staging=staging, array=array)
            start += _staging_bytes(buffer)
        return slots

    def _warm(self, bucket: _ReadyBucket) -> None:
        """One run on harmless inputs: every mask true, everything else zero (token 0 exists)."""
        neutral = {
            name: np.full(slot.array.shape, slot.array.dtype == np.bool_, slot.array.dtype)
            for name, slot in bucket.inputs.items()
        }
        with self._driver.exclusive():
            self._start(bucket, neutral)
            self._driver.synchronize()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """With the device for this run alone, and counters that no failed run left in between."""
        with self._driver.current(), self._driver.exclusive():
            if self._unfinished:
                self._reset_counters()
            self._unfinished = True
            yield
            self._unfinished = False

    def _reset_counters(self) -> None:
        if address := self._arenas.get(COUNTERS_ARENA, 0):
            self._driver.fill(address, 0, self._arena_bytes[COUNTERS_ARENA])

    def _start(self, bucket: _ReadyBucket, inputs: Mapping[str, Array]) -> None:
        """Copy the inputs and launch; returns at once."""
        if self._debug:
            for name, address in self._arenas.items():
                if address and name != COUNTERS_ARENA:
                    self._driver.fill(address, _POISON, self._arena_bytes[name])
        for name, slot in bucket.inputs.items():
            slot.array[...] = inputs[name]
            self._driver.copy_to_device(slot.address, slot.staging)
        self._driver.launch_graph(bucket.graph)

    def _fetch(self, bucket: _ReadyBucket, names: Sequence[str]) -> dict[str, Array]:
        """Wait for the run and copy values back."""
        unpinned: dict[str, Array] = {}
        for name in names:
            slot = bucket.outputs.get(name)
            if slot is not None:
                self._driver.copy_to_host(slot.staging, slot.address)
                continue
            buffer = bucket.values[name]
            memory = np.empty(buffer.size_bytes, np.uint8)
            self._driver.copy_to_host(memory, self._arenas[buffer.arena] + buffer.offset)
            unpinned[name] = memory.view(buffer.dtype.numpy).reshape(buffer.shape)
        self._driver.synchronize()
        pinned = {
            name: bucket.outputs[name].array.copy() for name in names if name in bucket.outputs
        }
        return {**unpinned, **pinned}

    def _report(self, batch: int, names: Sequence[str], inputs: Mapping[str, Array]) -> Report:
        report = Report.of(self._graph(batch), names)
        values = self._buckets[batch].values
        missing = [name for name in report.sources if name not in values and name not in inputs]
        if missing:
            raise BundleError(
                f"{self._bundle.folder}: {', '.join(names)} need {', '.join(missing)}, which the "
                "plan "
                "does not keep. Compile the bundle again."
            )
        return report


def _check_signature(plan: Plan, signature: Signature, bundle: Bundle) -> None:
    """The plan's inputs are the graph's, of the same types, and its values have all outputs."""
    for batch, bucket in plan.buckets.items():
        for name, buffer in bucket.inputs.items():
            given = TensorType(buffer.dtype, buffer.shape)
            known = name in signature.inputs
            expected = signature.input_type(name, batch) if known else "no such input"
            if given != expected:
                raise PlanError(
                    f"{bundle.folder}: the plan for compute capability {plan.compute_capability}, "
                    f"batch {batch}, has input {name}: {given}; the graph has {expected}. "
                    "Compile the bundle again."
                )
        absent = [name for name in signature.outputs if name not in bucket.values]
        if absent:
            raise PlanError(
                f"{bundle.folder}: the plan for compute capability {plan.compute_capability}, "
                "batch "
                f"{batch}, lacks the outputs {', '.join(absent)}. Compile the bundle again."
            )


def _weights_of(plan: Plan) -> set[str]:
    """Names of all weights that launches read."""
    launches = chain.from_iterable(bucket.launches for bucket in plan.buckets.values())
    names: set[str] = set()
    for argument in chain.from_iterable(launch.args for launch in launches):
        pointer = argument.base if isinstance(argument, DescriptorArgument) else argument
        if isinstance(pointer, WeightArgument):
            names.add(pointer.weight)
    return names


def _largest_arenas(plan: Plan) -> dict[str, int]:
    """Arena -> bytes that suffice for every bucket; they share the memory, as calls take turns."""
    sizes: dict[str, int] = {}
    for bucket in plan.buckets.values():
        for name, size in bucket.arenas.items():
            sizes[name] = max(size, sizes.get(name, 0))
    return dict(sorted(sizes.items()))


def _staging_bytes(buffer: Buffer) -> int:
    return -(-buffer.size_bytes // _STAGING_ALIGNMENT) * _STAGING_ALIGNMENT
