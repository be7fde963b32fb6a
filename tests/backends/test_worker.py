"""One kernel with Triton: what fits the function, what plans can launch, equal bytes anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from policyc.backends import worker
from policyc.backends.errors import CubinError
from policyc.backends.source import KernelSource
from policyc.backends.worker import Task, compile_kernel, kernel_function
from tests.backends.fixtures import SCALE

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signature": SCALE.signature[:2]}, "missing factor; unknown none"),
        ({"constants": (*SCALE.constants, ("Z", 1))}, "missing none; unknown Z"),
        ({"signature": SCALE.signature[::-1]}, "the function's order is"),
    ],
)
def test_call_that_does_not_fit_the_function(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    source = replace(SCALE, **changes)  # type: ignore[arg-type]
    with pytest.raises(CubinError, match=message):
        compile_kernel(Task(source=source, compute_capability=90, folder=tmp_path))


def test_function_that_is_not_there(tmp_path: Path) -> None:
    source = replace(SCALE, kernel="norm:no_such", program="")
    with pytest.raises(CubinError, match="norm:no_such: policyc.kernels.norm has no no_such"):
        kernel_function(source, tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("global_scratch_size", 128), ("num_ctas", 2), ("launch_cooperative_grid", True)],
)
def test_what_plans_do_not_have_is_refused(field: str, value: object) -> None:
    metadata = SimpleNamespace(
        name="scale",
        shared=1024,
        num_warps=8,
        num_ctas=1,
        global_scratch_size=0,
        profile_scratch_size=0,
        launch_cooperative_grid=False,
        tensordesc_meta=None,
    )
    product = worker._product(SCALE, b"code", metadata)
    # The warps that the compiler decided on, not those asked for.
    assert (product.block_threads, product.shared_bytes, product.tensor_maps) == (256, 1024, ())
    setattr(metadata, field, value)
    with pytest.raises(CubinError, match=f"program:scale: {field} is {value}, plans have"):
        worker._product(SCALE, b"code", metadata)


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
        ("length_pointer", None),
        ("GROUP_ROWS", 0),
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
