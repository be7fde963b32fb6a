"""Compiles a kernel call for a compute capability without a GPU, and reads what the machine code
needs."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from policyc.compiler.ir.types import DType
from policyc.kernels.spec import Argument, Descriptor, KernelCall, View
from tests.kernels.execution import kernel_function

_TYPES = {
    DType.F64: "fp64",
    DType.F32: "fp32",
    DType.BF16: "bf16",
    DType.I64: "i64",
    DType.I32: "i32",
    DType.U8: "u8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one launch takes: registers a thread, bytes of local memory (spills) and of shared
    memory."""

    registers: int
    local_bytes: int
    shared_bytes: int
    ptx: str


def compile_call(call: KernelCall, compute_capability: int) -> Usage:
    """Compile as the backend does: every pointer's alignment from its view's offset."""
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = kernel_function(call)
    given = dict(call.arguments)
    constants = {**dict(call.constants), **{name: None for name, a in given.items() if a is None}}
    signature = {
        name: "constexpr" if name in constants else _type(given[name])
        for name in function.arg_names
    }
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(function.arg_names)
        if isinstance(view := given.get(name), View)
        and view.offset * view.dtype.size_bytes % 16 == 0
    }
    kernel = compile_kernel(
        ASTSource(fn=function, signature=signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", compute_capability, 32),
        options={
            "num_warps": call.num_warps,
            "num_stages": call.num_stages,
            "enable_fp_fusion": True,
            "launch_pdl": call.pdl,
        },
    )
    return _usage(kernel.asm["cubin"], kernel.metadata.shared, kernel.asm["ptx"])


def _type(argument: Argument) -> str:
    if isinstance(argument, View):
        return "*" + _TYPES[argument.dtype]
    if isinstance(argument, Descriptor):
        return f"tensordesc<{_TYPES[argument.view.dtype]}{list(argument.block)}>"
    assert isinstance(argument, int | float), f"argument {argument} has no type here"
    return "i32" if isinstance(argument, int) else "fp32"


def _usage(cubin: bytes, shared_bytes: int, ptx: str) -> Usage:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack, local = (
        int(re.search(rf"{field}:(\d+)", text).group(1))  # type: ignore[union-attr]
        for field in ("REG", "STACK", "LOCAL")
    )
    return Usage(registers=registers, local_bytes=stack + local, shared_bytes=shared_bytes, ptx=ptx)
