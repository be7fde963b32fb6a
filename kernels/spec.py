"""What a kernel family tells the compiler about itself, without Triton.

A family serves some ops of the scheduled level. For a node it names the problem (op, shape class,
dtypes), lists candidate parameters with the reason why a device cannot run one, and turns a chosen
candidate into kernel calls. The backend compiles each distinct call; the plan stores it as a
launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from policyc.compiler.ir.graph import Node
from policyc.compiler.ir.selection import Candidate, Parameters, Problem
from policyc.compiler.ir.types import DType, TensorType

COUNTERS_PREFIX = "counters:"
"""Of the base of a node's counters; no value has a colon in its name."""

__all__ = [
    "COUNTERS_PREFIX",
    "Argument",
    "Candidate",
    "Descriptor",
    "Device",
    "Family",
    "KernelCall",
    "Parameters",
    "Problem",
    "View",
    "WithoutWorkspace",
    "counters_view",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A strided window on a buffer (named by the value that owns it) or on a weight (`@name`).

    `offset` and `strides` count elements; bases are aligned to 256 bytes.
    """

    base: str
    offset: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


def counters_view(node: Node, size_bytes: int) -> View:
    """The counters of a node, as int32: zero at load, and nobody else writes them."""
    return View(
        base=COUNTERS_PREFIX + node.outputs[0].name,
        offset=0,
        dtype=DType.I32,
        shape=(size_bytes // 4,),
        strides=(1,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A tensor-map argument (compute capability from 9.0 on): `view` read or written in blocks."""

    view: View
    block: tuple[int, ...]


Argument = View | Descriptor | int | float | None
"""A kernel argument: pointer, tensor map, i32, f32, or an absent pointer (constexpr None)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """One launch of one kernel.

    `kernel` is `module:function` below `policyc.kernels`; `arguments` are the non-constexpr
    parameters in order of the function's signature, `constants` its constexpr parameters. `program`
    is the text of a generated kernel, or empty. With `pdl` the kernel waits for its predecessor
    itself (`gdc_wait`).
    """

    kernel: str
    arguments: tuple[tuple[str, Argument], ...]
    constants: tuple[tuple[str, int | bool | str | None], ...]
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    pdl: bool
    program: str = ""


class Device(Protocol):
    """The facts of a profile that families may ask for."""

    @property
    def compute_capability(self) -> int: ...
    @property
    def sm_count(self) -> int: ...
    @property
    def shared_bytes_per_block(self) -> int: ...
    @property
    def has_dependent_launch(self) -> bool: ...
    @property
    def has_tensor_maps(self) -> bool: ...


class Family(Protocol):
    """A kernel family: the triton-free side of one file of kernels."""

    @property
    def ops(self) -> tuple[str, ...]: ...

    def problem(self, node: Node, operands: tuple[TensorType, ...]) -> Problem: ...

    def candidates(
        self, node: Node, operands: tuple[TensorType, ...], device: Device
    ) -> tuple[Candidate, ...]: ...

    def scratch_bytes(
        self, node: Node, operands: tuple[TensorType, ...], parameters: Parameters
    ) -> int:
        """Bytes of workspace the calls need beside operands and results (0 for most)."""
        ...

    def counter_bytes(
        self, node: Node, operands: tuple[TensorType, ...], parameters: Parameters
    ) -> int:
        """Bytes of `counters_view` that the calls use (0 for most), a multiple of 4.

        Counters are zero at load and keep their values from one run to the next. Batch buckets
        share them, so a launch must leave them as any other launch may find them.
        """
        ...

    def calls(
        self,
        node: Node,
        operands: tuple[View, ...],
        results: tuple[View, ...],
        scratch: View | None,
        parameters: Parameters,
        device: Device,
    ) -> tuple[KernelCall, ...]:
        """The launches that compute `results` from `operands`, in order on one stream."""
        ...


class WithoutWorkspace:
    """For families whose calls need no memory beside operands and results."""

    def scratch_bytes(
        self, node: Node, operands: tuple[TensorType, ...], parameters: Parameters
    ) -> int:
        return 0

    def counter_bytes(
        self, node: Node, operands: tuple[TensorType, ...], parameters: Parameters
    ) -> int:
        return 0
