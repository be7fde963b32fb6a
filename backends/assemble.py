"""Turn kernel calls into a plan: arguments become byte offsets, compiled kernels become entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policyc.backends.errors import LoweringError
from policyc.backends.kernel_cache import CompiledKernel, TensorMapLayout
from policyc.backends.lower import SCRATCH_PREFIX, LoweredCall
from policyc.backends.views import Placement, is_readable
from policyc.compiler.ir.graph import Graph, is_weight
from policyc.compiler.ir.memory import Allocation, MemoryPlan
from policyc.compiler.ir.sequence import host_reads
from policyc.kernels.spec import COUNTERS_PREFIX, Descriptor, Device, View
from policyc.runtime_min import plan
from policyc.runtime_min.plan import Bucket, Buffer, BufferArgument, WeightArgument

MAP_ALIGNMENT_BYTES = 16
"""Of the base and of every stride of a tensor map (CUDA driver API, cuTensorMapEncodeTiled)."""


def assemble_bucket(
    graph: Graph,
    placement: Placement,
    memory: MemoryPlan,
    calls: Sequence[LoweredCall],
    kernels: Mapping[str, CompiledKernel],
) -> Bucket:
    """Launches with byte offsets, and the buffers that the host writes and reads.

    Raises:
        LoweringError: an argument outside its memory or against the alignment it was compiled for.
    """
    ids = {item.source: item.source.id for item in calls}
    types = {weight.name: weight.type.size_bytes for weight in graph.weights}
    locate = _Locate(memory=memory, weight_bytes=types)
    return Bucket(
        arenas=dict(memory.arenas),
        inputs={
            item.value.name: locate.buffer(placement.views[item.value.name])
            for item in graph.inputs
        },
        values={name: locate.buffer(placement.views[name]) for name in host_reads(graph)},
        launches=tuple(
            _launch(item, ids[item.source], kernels[ids[item.source]], locate) for item in calls
        ),
    )


def assemble_plan(
    device: Device,
    kernels: Mapping[str, CompiledKernel],
    buckets: Mapping[int, Bucket],
) -> plan.Plan:
    """The plan of one compute capability; kernel files are named by `kernel_file`.

    Raises:
        LoweringError: a kernel that needs more shared memory than a block has on the device.
    """
    for name, kernel in kernels.items():
        if kernel.shared_bytes > device.shared_bytes_per_block:
            raise LoweringError(
                f"kernel {name}: needs {kernel.shared_bytes} bytes of shared memory, a block has "
                f"{device.shared_bytes_per_block}. Its family must reject these parameters."
            )
    return plan.Plan(
        compute_capability=device.compute_capability,
        kernels={
            name: _kernel(kernel_file(device.compute_capability, name), kernel)
            for name, kernel in sorted(kernels.items())
        },
        buckets=dict(sorted(buckets.items())),
    )


def kernel_file(compute_capability: int, kernel_id: str) -> str:
    """Path of a kernel's cubin in the bundle."""
    return f"kernels/{compute_capability}/{kernel_id}.cubin"


def _kernel(file: str, kernel: CompiledKernel) -> plan.Kernel:
    return plan.Kernel(
        file=file,
        entry=kernel.entry,
        shared_bytes=kernel.shared_bytes,
        block_threads=kernel.block_threads,
        cluster=1,
        pdl=kernel.pdl,
        params=tuple(
            plan.Parameter(offset=offset, size=size) for offset, size in kernel.parameters
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locate:
    """Turns views into byte offsets."""

    memory: MemoryPlan
    weight_bytes: Mapping[str, int]

    def buffer(self, view: View) -> Buffer:
        pointer = self.pointer(view)
        if isinstance(pointer, WeightArgument) or not is_readable(view):
            raise LoweringError(
                f"{view.base}: the host reads shape {view.shape}, strides {view.strides} at offset "
                f"{view.offset}; expected a contiguous, aligned buffer of an arena."
            )
        return Buffer(
            arena=pointer.arena, offset=pointer.offset, dtype=view.dtype, shape=view.shape
        )

    def pointer(self, view: View) -> BufferArgument | WeightArgument:
        start = view.offset * view.dtype.size_bytes
        end = start + _extent_bytes(view)
        if is_weight(view.base):
            self._require_inside(view, end, self.weight_bytes[view.base])
            return WeightArgument(weight=view.base.removeprefix("@"), offset=start)
        place = self._allocation(view.base)
        self._require_inside(view, end, place.size)
        return BufferArgument(arena=place.arena, offset=place.offset + start)

    def _allocation(self, base: str) -> Allocation:
        if base.startswith(SCRATCH_PREFIX):
            return self.memory.scratch[base.removeprefix(SCRATCH_PREFIX)]
        if base.startswith(COUNTERS_PREFIX):
            return self.memory.counters[base.removeprefix(COUNTERS_PREFIX)]
        return self.memory.values[base]

    def _require_inside(self, view: View, end: int, size: int) -> None:
        if view.offset < 0 or end > size:
            raise LoweringError(
                f"{view.base}: a view of shape {view.shape}, strides {view.strides} at offset "
                f"{view.offset} ends at byte {end}, the tensor has {size}."
            )


def _launch(item: LoweredCall, name: str, kernel: CompiledKernel, locate: _Locate) -> plan.Launch:
    maps = iter(kernel.tensor_maps)
    arguments: list[plan.Argument] = []
    for key, argument in item.call.arguments:
        match argument:
            case None:
                continue
            case View():
                arguments.append(locate.pointer(argument))
            case Descriptor(view=view):
                where = f"{item.work.place}: argument {key} of {item.call.kernel}"
                arguments.append(_descriptor(view, next(maps), locate.pointer(view), where))
            case _:
                arguments.append(_scalar(argument))
    return plan.Launch(
        kernel=name,
        grid=item.call.grid,
        args=(*arguments, plan.NullArgument(), plan.NullArgument()),
        node=item.work.name,
        stage=item.work.position.stage.name,
        origin=item.work.position.node.origin,
    )


def _scalar(argument: int | float) -> plan.Argument:
    if isinstance(argument, int):
        return plan.IntegerArgument(value=argument)
    return plan.FloatArgument(value=argument)


def _descriptor(
    view: View,
    layout: TensorMapLayout,
    base: BufferArgument | WeightArgument,
    where: str,
) -> plan.DescriptorArgument:
    size = view.dtype.size_bytes
    steps = [base.offset, *(stride * size for stride in view.strides[:-1])]
    if view.strides[-1] != 1 or any(step % MAP_ALIGNMENT_BYTES for step in steps):
        raise LoweringError(
            f"{where}: offset {base.offset} bytes, strides {view.strides} of {size} bytes; a "
            "tensor map needs unit inner stride, and base and strides at multiples of "
            f"{MAP_ALIGNMENT_BYTES} bytes."
        )
    return plan.DescriptorArgument(
        base=base,
        dtype=view.dtype,
        shape=view.shape,
        strides=view.strides,
        box=layout.box,
        swizzle=layout.swizzle,
        element_type=layout.element_type,
    )


def _extent_bytes(view: View) -> int:
    """Bytes from the first element of the view to the end of its last one."""
    last = sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    return (last + 1) * view.dtype.size_bytes
