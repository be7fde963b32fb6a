"""Compiling for real: bytes, parameters, cache, errors and crashes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from policyc.backends import cubin
from policyc.backends.cubin import compile_kernels, default_cache_folder
from policyc.backends.errors import CubinError
from policyc.backends.kernel_cache import CompiledKernel, KernelCache
from policyc.backends.source import KernelSource
from policyc.backends.toolchain import Toolchain, check_toolchain
from policyc.backends.worker import Product, Task, compile_kernel
from tests.backends.test_elf import elf, info, record

REPOSITORY = Path(__file__).parents[2]
PROGRAM = """
import triton
import triton.language as tl

@triton.jit
def scale(x, y, factor, absent, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < N).to(tl.float32) * factor, mask=i < N)

@triton.jit
def broken(x, N: tl.constexpr):
    tl.store(x, no_such_thing)

@triton.jit
def mapped(m, y):
    i = tl.arange(0, 16)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(y + i, m.load([0, 0]))
"""
SCALE = KernelSource(
    kernel="program:scale",
    signature=(("x", "*bf16"), ("y", "*fp32"), ("factor", "fp32")),
    divisible=("x", "y"),
    constants=(("N", 100), ("BLOCK", 128), ("absent", None)),
    num_warps=2,
    num_stages=1,
    pdl=False,
    program=PROGRAM,
)


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return check_toolchain((90,))


def compile_one(source: KernelSource, toolchain: Toolchain, cache: Path) -> CompiledKernel:
    return compile_kernels({"k": source}, 90, toolchain, cache)["k"]


def test_compiled_kernel_and_cache(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    sources = {
        "scale": SCALE,
        "mapped": replace(
            SCALE,
            kernel="program:mapped",
            signature=(("m", "tensordesc<bf16[16, 64]>"), ("y", "*bf16")),
            divisible=("y",),
            constants=(),
        ),
    }
    kernels = compile_kernels(sources, 90, toolchain, tmp_path, told.append)
    assert sorted(told) == ["mapped", "scale"]
    scale, mapped = kernels["scale"], kernels["mapped"]
    assert (scale.entry, scale.block_threads, scale.tensor_maps) == ("scale", 64, ())
    assert scale.parameters == ((0, 8), (8, 8), (16, 4), (24, 8), (32, 8))
    assert scale.cubin.startswith(b"\x7fELF")
    (layout,) = mapped.tensor_maps
    assert (layout.box, layout.swizzle, layout.element_type) == ((16, 64), 3, 10)
    assert [size for _, size in mapped.parameters] == [128, 4, 4, 8, 8, 8, 8, 8]
    monkeypatch.setattr(cubin, "_pool", lambda workers: pytest.fail("compiled again"))
    assert compile_kernels(sources, 90, toolchain, tmp_path) == kernels


def test_cache_tells_tools_and_sources_apart(toolchain: Toolchain, tmp_path: Path) -> None:
    store = KernelCache(tmp_path)
    cases = [
        (SCALE, toolchain),
        (SCALE, replace(toolchain, triton="0.0.1")),
        (SCALE, replace(toolchain, ptxas={90: "0.1"})),
        (replace(SCALE, program=PROGRAM.replace("* factor", "/ factor")), toolchain),
        (replace(SCALE, num_warps=8), toolchain),
    ]
    keys = {cubin.cache_key(store, source, 90, tools, tmp_path) for source, tools in cases}
    assert len(keys) == 5
    assert cubin.cache_key(store, SCALE, 90, toolchain, tmp_path) in keys


def test_compile_error_names_the_kernel(toolchain: Toolchain, tmp_path: Path) -> None:
    broken = replace(
        SCALE,
        kernel="program:broken",
        signature=(("x", "*fp32"),),
        divisible=(),
        constants=(("N", 7),),
    )
    with pytest.raises(CubinError) as raised:
        compile_one(broken, toolchain, tmp_path)
    text = str(raised.value)
    assert "kernel k (program:broken) did not compile for compute capability 90" in text
    assert "no_such_thing" in text and "{'N': 7}" in text
    assert not list(tmp_path.rglob("*.kernel"))


def test_crashing_compiler_names_its_kernel(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import os, sys\nif 'policyc_test_parent' not in sys.modules:\n    os.abort()\n" + PROGRAM
    )
    monkeypatch.setitem(sys.modules, "policyc_test_parent", sys)
    crashing = replace(SCALE, program=program)
    with pytest.raises(
        CubinError, match=r"kernel crash \(program:scale\).*process ended by itself"
    ):
        compile_kernels({"good": SCALE, "crash": crashing}, 90, toolchain, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signature": SCALE.signature[:2]}, "missing factor; unknown none"),
        ({"constants": (*SCALE.constants, ("Z", 1))}, "missing none; unknown Z"),
        ({"signature": SCALE.signature[::-1]}, "the function's order is"),
    ],
)
def test_call_that_does_not_fit_the_function(
    toolchain: Toolchain, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    source = replace(SCALE, **changes)  # type: ignore[arg-type]
    with pytest.raises(CubinError, match=message):
        compile_kernel(Task(source=source, compute_capability=90, folder=tmp_path))


def test_function_that_is_not_there(toolchain: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(
        CubinError, match="kernel norm:no_such: policyc.kernels.norm has no no_such"
    ):
        compile_one(replace(SCALE, kernel="norm:no_such", program=""), toolchain, tmp_path)


def test_parameters_that_are_not_those_expected() -> None:
    product = Product(
        cubin=elf(**{".nv.info.scale": info(record(0, 0, 8), record(1, 8, 8))}),
        entry="scale",
        shared_bytes=0,
        block_threads=64,
        tensor_maps=(),
    )
    with pytest.raises(
        CubinError, match=r"has parameters of \(8, 8\) bytes, expected \(8, 8, 4, 8"
    ):
        cubin._checked("k", SCALE, product)


def test_default_cache_is_in_the_users_folder() -> None:
    assert default_cache_folder() == Path.home() / ".cache" / "policyc" / "kernels"


COMPILE = """
import hashlib, json, sys
from pathlib import Path
from policyc.backends.worker import Task, compile_kernel
from policyc.backends.source import KernelSource

for fields in json.load(sys.stdin):
    fields.update((name, tuple(map(tuple, fields[name]))) for name in ("signature", "constants"))
    source = KernelSource(**fields)
    made = compile_kernel(Task(source=source, compute_capability=90, folder=Path(sys.argv[1])))
    print(hashlib.sha256(made.cubin).hexdigest(), source.id)
"""
NORM = KernelSource(
    kernel="norm:norm_rows",
    signature=(("x_pointer", "*fp32"), ("y_pointer", "*fp32"), ("eps", "fp32")),
    divisible=("x_pointer",),
    constants=(
        ("scale_pointer", None),
        ("shift_pointer", None),
        *((name, 4) for name in ("ROWS", "D", "X_INNER", "X_STRIDE", "Y_INNER", "Y_STRIDE")),
        *((f"{name}_OUTER_STRIDE", 0) for name in "XY"),
        ("ROWS_PER_PROGRAM", 1),
        ("BLOCK", 4),
        *((name, False) for name in ("LAYER", "VECTORS_EARLY", "PDL")),
    ),
    num_warps=1,
    num_stages=1,
    pdl=False,
)


def test_bytes_do_not_depend_on_the_folder(tmp_path: Path) -> None:
    """A kernel of the repository and a generated one, each compiled from two copies of the code."""
    sources = [{key: getattr(item, key) for key in item.__slots__} for item in (NORM, SCALE)]
    printed = []
    for name in ("here", "a_longer_name/there"):
        copy = tmp_path / name
        for folder in ("policyc", "kernels", "compiler/ir", "backends"):
            shutil.copytree(REPOSITORY / folder, copy / folder, symlinks=True)
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, str(copy)],
            input=json.dumps(sources),
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            check=True,
            capture_output=True,
            text=True,
        )
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert printed[0].count("\n") == 2
