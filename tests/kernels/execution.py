"""Runs kernel calls on torch tensors: by Triton's interpreter on a CPU, by its compiler on a GPU.

Imports neither torch nor triton by itself: whether Triton interprets is decided when it is
imported.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from policyc.compiler.ir.types import Array, DType
from policyc.kernels.spec import Argument, Descriptor, KernelCall, View


def interpret_triton() -> None:
    """Make this process interpret kernels; to be called before triton is imported."""
    assert "triton" not in sys.modules, "triton is already imported"
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language as tl
    from triton.runtime import interpreter

    multiply = interpreter.InterpreterBuilder.create_dot

    def widened(builder: Any, handle: Any) -> Any:
        is_bf16 = handle.dtype.scalar == tl.bfloat16
        return builder.create_fp_ext(handle, tl.float32) if is_bf16 else handle

    def multiply_wide(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        # The interpreter keeps bfloat16 as its bits and would multiply those as integers.
        return multiply(builder, widened(builder, a), widened(builder, b), *rest)

    interpreter.InterpreterBuilder.create_dot = multiply_wide


def kernel_function(call: KernelCall) -> Any:
    """The Triton function that a call names; a generated program is written to a temporary file
    first."""
    module, _, function = call.kernel.partition(":")
    loaded = (
        program_module(call.program)
        if call.program
        else importlib.import_module(f"policyc.kernels.{module}")
    )
    return getattr(loaded, function)


def program_module(program: str) -> ModuleType:
    name = "program_" + hashlib.sha256(program.encode()).hexdigest()[:16]
    if name not in sys.modules:
        path = Path(tempfile.mkdtemp(prefix="policyc-program-")) / f"{name}.py"
        path.write_text(program)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, f"{path} cannot be imported"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def launch(call: KernelCall, tensors: dict[str, Any], **options: object) -> None:
    """Launch one call; `tensors` are flat, by the name of the buffer."""
    kernel_function(call)[call.grid](
        **bound_arguments(call, tensors),
        **dict(call.constants),
        num_warps=call.num_warps,
        num_stages=call.num_stages,
        **options,
    )


def bound_arguments(call: KernelCall, tensors: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments as Triton takes them: views as tensors, tensor maps as host
    descriptors."""
    return {name: _bound(argument, tensors) for name, argument in call.arguments}


def _bound(argument: Argument, tensors: dict[str, Any]) -> Any:
    if isinstance(argument, View):
        return pointer(tensors, argument)
    if isinstance(argument, Descriptor):
        from triton.tools.tensor_descriptor import TensorDescriptor

        view = argument.view
        sizes = (list(view.shape), list(view.strides), list(argument.block))
        return TensorDescriptor(pointer(tensors, view), *sizes)
    return argument


def pointer(tensors: dict[str, Any], view: View) -> Any:
    """The buffer from the view's first element on, as elements of the view's type."""
    import torch

    types = {
        DType.F64: torch.float64,
        DType.F32: torch.float32,
        DType.BF16: torch.bfloat16,
        DType.I64: torch.int64,
        DType.I32: torch.int32,
        DType.U8: torch.uint8,
        DType.BOOL: torch.bool,
    }
    return tensors[view.base].view(types[view.dtype])[view.offset :]


def run_interpreted(calls: tuple[KernelCall, ...], buffers: dict[str, Array]) -> dict[str, Array]:
    """The buffers after the calls; runs in a process that called `interpret_triton`."""
    import torch

    assert os.environ.get("TRITON_INTERPRET") == "1", "this process does not interpret kernels"
    tensors: dict[str, Any] = {}
    for name, array in buffers.items():
        is_bf16 = array.dtype == ml_dtypes.bfloat16
        tensor = torch.from_numpy(
            np.ascontiguousarray(array.view(np.int16) if is_bf16 else array).copy()
        )
        tensors[name] = tensor.view(torch.bfloat16) if is_bf16 else tensor
    for call in calls:
        launch(call, tensors)
    found: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.bfloat16:
            found[name] = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        else:
            found[name] = tensor.numpy()
    return found
