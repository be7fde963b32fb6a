"""What the compiler is given for one kernel: source, argument types, constants and options."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from policyc.backends.errors import LoweringError
from policyc.compiler.ir.types import DType
from policyc.kernels.spec import Argument, Descriptor, KernelCall, View

_TRITON_TYPES: dict[DType, str] = {
    DType.F64: "fp64",
    DType.F32: "fp32",
    DType.BF16: "bf16",
    DType.I64: "i64",
    DType.I32: "i32",
    DType.U8: "u8",
    # A boolean is a byte that holds 0 or 1.
    DType.BOOL: "u8",
}
_DESCRIPTOR = re.compile(r"tensordesc<\w+\[([\d, ]+)\]>")
_DIVISOR = 16
_LARGEST_INTEGER = 2**31 - 1
_POINTER_BYTES, _SCALAR_BYTES, _TENSOR_MAP_BYTES = 8, 4, 128

Constant = int | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """Everything that decides the machine code of a kernel, beside its Triton source and the tools.

    `signature` are the arguments in order with their Triton types; `divisible` names those that are
    known to be multiples of 16; `constants` includes absent pointers, as None. `program` is the
    text of a generated module, or empty if `kernel` is `module:function` below `policyc.kernels`.
    """

    kernel: str
    signature: tuple[tuple[str, str], ...]
    divisible: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int
    num_stages: int
    pdl: bool
    program: str = ""

    @property
    def text(self) -> str:
        """The same text for equal sources only."""
        fields = [getattr(self, name) for name in self.__slots__]
        return json.dumps(fields, separators=(",", ":"))

    @property
    def id(self) -> str:
        """Function name and a short hash of the content: the kernel's name in plan and bundle."""
        function = self.kernel.partition(":")[2]
        return f"{function}_{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"

    @property
    def parameter_sizes(self) -> tuple[int, ...]:
        """Bytes of each parameter of the machine code; the last two are scratch pointers."""
        sizes: list[int] = []
        for _, kind in self.signature:
            if match := _DESCRIPTOR.fullmatch(kind):
                rank = len(match[1].split(","))
                sizes += [_TENSOR_MAP_BYTES, *[4] * rank, *[8] * rank]
            else:
                sizes.append(_POINTER_BYTES if kind.startswith("*") else _SCALAR_BYTES)
        return (*sizes, _POINTER_BYTES, _POINTER_BYTES)


def source_of(call: KernelCall) -> KernelSource:
    """The source that a call needs compiled; calls that differ in values alone share one.

    Raises:
        LoweringError: an argument that no kernel can take.
    """
    given = [(name, argument) for name, argument in call.arguments if argument is not None]
    absent = [(name, None) for name, argument in call.arguments if argument is None]
    return KernelSource(
        kernel=call.kernel,
        signature=tuple((name, _type(call, name, argument)) for name, argument in given),
        divisible=tuple(name for name, argument in given if _is_divisible(argument)),
        constants=(*call.constants, *absent),
        num_warps=call.num_warps,
        num_stages=call.num_stages,
        pdl=call.pdl,
        program=call.program,
    )


def _type(call: KernelCall, name: str, argument: Argument) -> str:
    where = f"kernel {call.kernel}, argument {name}"
    match argument:
        case View(dtype=dtype):
            return f"*{_TRITON_TYPES[dtype]}"
        case Descriptor(view=view, block=block):
            if len(block) != len(view.shape):
                raise LoweringError(f"{where}: block {block} for a view of shape {view.shape}.")
            return f"tensordesc<{_TRITON_TYPES[view.dtype]}[{', '.join(map(str, block))}]>"
        case bool():
            raise LoweringError(f"{where}: a bool; expected it among the constants.")
        case int(value):
            if not -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER:
                raise LoweringError(f"{where}: {value} does not fit 32 bits; make it a constant.")
            return "i32"
        case _:
            return "fp32"


def _is_divisible(argument: Argument) -> bool:
    """Bases are aligned to 256 bytes, so that an offset alone decides about a pointer."""
    match argument:
        case View(offset=offset, dtype=dtype):
            return offset * dtype.size_bytes % _DIVISOR == 0
        case int(value):
            return value % _DIVISOR == 0
        case _:
            return False
