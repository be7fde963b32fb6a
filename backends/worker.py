"""Compiles one kernel with Triton, for a named compute capability, without a GPU.

Runs in worker processes: LLVM may abort the process. Triton is imported inside the functions, so
that `toolchain` can say that it is missing.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from policyc.backends.errors import CubinError
from policyc.backends.source import KernelSource

WARP_THREADS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One kernel to compile; `folder` holds generated programs and Triton's own cache."""

    source: KernelSource
    compute_capability: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What Triton made: machine code, and the metadata that a launch needs.

    `tensor_maps` are (box, swizzle, element type) of each descriptor argument, in order.
    """

    cubin: bytes
    entry: str
    shared_bytes: int
    block_threads: int
    tensor_maps: tuple[tuple[tuple[int, ...], int, int], ...]


def kernel_function(source: KernelSource, folder: Path) -> Any:
    """The Triton function of a source; a generated program is written below `folder` first."""
    module_name, _, function = source.kernel.partition(":")
    if source.program:
        module = _program_module(source.program, folder)
    else:
        module = importlib.import_module(f"policyc.kernels.{module_name}")
    if not hasattr(module, function):
        raise CubinError(f"kernel {source.kernel}: {module.__name__} has no {function}.")
    return getattr(module, function)


def compile_kernel(task: Task) -> Product:
    """Compile a kernel.

    Line information is left out: it would put the path of the source folder into the cubin.

    Raises:
        CubinError: the call does not fit the function, or the kernel needs what plans do not have.
        Others: whatever Triton raises; the caller names the kernel.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    triton.knobs.compilation.disable_line_info = True
    triton.knobs.cache.dir = str(task.folder / "triton")
    source = task.source
    function = kernel_function(source, task.folder)
    signature = _full_signature(source, tuple(function.arg_names))
    compiled = triton.compile(
        ASTSource(
            fn=function,
            signature=signature,
            constexprs=dict(source.constants),
            attrs={
                (index,): [["tt.divisibility", 16]]
                for index, name in enumerate(signature)
                if name in source.divisible
            },
        ),
        target=GPUTarget("cuda", task.compute_capability, WARP_THREADS),
        options={
            "num_warps": source.num_warps,
            "num_stages": source.num_stages,
            # Explicit: the default changes between releases of Triton.
            "enable_fp_fusion": True,
            "launch_pdl": source.pdl,
        },
    )
    return _product(source, compiled.asm["cubin"], compiled.metadata)


def _full_signature(source: KernelSource, names: tuple[str, ...]) -> dict[str, str]:
    """Types of all parameters, constants included, in the order of the function."""
    types, constants = dict(source.signature), dict(source.constants)
    given = {*types, *constants}
    if given != set(names):
        missing = ", ".join(sorted(set(names) - given)) or "none"
        unknown = ", ".join(sorted(given - set(names))) or "none"
        raise CubinError(f"kernel {source.kernel}: missing {missing}; unknown {unknown}.")
    in_order = tuple(name for name in names if name in types)
    if in_order != tuple(types):
        raise CubinError(
            f"kernel {source.kernel}: arguments {tuple(types)}, the function's order is {in_order}."
        )
    return {name: types.get(name, "constexpr") for name in names}


def _product(source: KernelSource, cubin: bytes, metadata: Any) -> Product:
    for field, expected in (
        ("global_scratch_size", 0),
        ("profile_scratch_size", 0),
        ("num_ctas", 1),
        ("launch_cooperative_grid", False),
    ):
        if (got := getattr(metadata, field)) != expected:
            raise CubinError(f"kernel {source.kernel}: {field} is {got}, plans have {expected}.")
    return Product(
        cubin=cubin,
        entry=metadata.name,
        shared_bytes=metadata.shared,
        # After compiling: warp specialisation adds warps.
        block_threads=WARP_THREADS * metadata.num_warps,
        tensor_maps=tuple(
            (tuple(item["block_size"]), item["swizzle"], item["elem_type"])
            for item in metadata.tensordesc_meta or ()
        ),
    )


def _program_module(program: str, folder: Path) -> ModuleType:
    """A generated program as a module; Triton reads the source from its file."""
    name = f"program_{hashlib.sha256(program.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    path = folder / f"{name}.py"
    if not path.exists():
        path.write_text(program, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} is no Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
