"""Compiling for real: bytes, parameters, cache, errors and crashes."""

from __future__ import annotations

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
from policyc.backends.worker import Product
from tests.backends.fixtures import PROGRAM, SCALE
from tests.backends.test_elf import elf, info, record


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


def test_faults_are_collected_where_that_is_asked_for(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import os, sys\nif 'policyc_test_parent' not in sys.modules:\n    os.abort()\n" + PROGRAM
    )
    monkeypatch.setitem(sys.modules, "policyc_test_parent", sys)
    wrong = replace(
        SCALE, kernel="program:broken", signature=(("x", "*bf16"),), constants=(("N", 7),)
    )
    sources = {"crash": replace(SCALE, program=program), "wrong": wrong, "good": SCALE}
    faults: dict[str, str] = {}
    kernels = compile_kernels(sources, 90, toolchain, tmp_path, faults=faults)
    assert list(kernels) == ["good"] and set(faults) == {"crash", "wrong"}
    assert "process ended by itself" in faults["crash"] and "no_such_thing" in faults["wrong"]


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
