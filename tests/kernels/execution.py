"""Runs kernel calls on torch tensors: by Triton's interpreter on a CPU, by its compiler on a GPU.

Imports neither torch nor triton by itself: whether Triton interprets is decided when it is imported.
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

from policyc.compiler.ir.types import Array
from policyc.kernels.spec import KernelCall, View


def interpret_triton() -> None:
    """Make this process interpret kernels; to be called before triton is imported."""
    assert "triton" not in sys.modules, "triton is already imported"
    os.environ["TRITON_INTERPRET"] = "1"


def kernel_function(call: KernelCall) -> Any:
    """The Triton function that a call names; a generated program is written to a temporary file first."""
    module, _, function = call.kernel.partition(":")
    loaded = program_module(call.program) if call.program else importlib.import_module(f"policyc.kernels.{module}")
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
    arguments = {}
    for name, argument in call.arguments:
        is_view = isinstance(argument, View)
        arguments[name] = tensors[argument.base][argument.offset :] if is_view else argument
    kernel_function(call)[call.grid](
        **arguments,
        **dict(call.constants),
        num_warps=call.num_warps,
        num_stages=call.num_stages,
        **options,
    )


def run_interpreted(calls: tuple[KernelCall, ...], buffers: dict[str, Array]) -> dict[str, Array]:
    """The buffers after the calls; runs in a process that called `interpret_triton`."""
    import torch

    assert os.environ.get("TRITON_INTERPRET") == "1", "this process does not interpret kernels"
    tensors: dict[str, Any] = {}
    for name, array in buffers.items():
        is_bf16 = array.dtype == ml_dtypes.bfloat16
        tensor = torch.from_numpy(np.ascontiguousarray(array.view(np.int16) if is_bf16 else array).copy())
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
