"""What reaches the driver library through NVIDIA's bindings: a stub `libcuda.so.1` takes notes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver")

SOURCE = Path(__file__).with_name("stub_libcuda.c")
SCRIPT = """
import sys
from policyc import Policy
from policyc.runtime_min.errors import NonFiniteActions
from tests.runtime_min.bundles import tensors

policy = Policy.load(sys.argv[1], debug=True)
assert policy.device == "cuda:0", policy.device
assert policy.executor.measure_replays(1, 2) == (500.0, 500.0)
open(sys.argv[2], "a").write("run\\n")
try:
    policy.run(tensors())
except NonFiniteActions:
    pass  # nothing computes behind a stub: what was poisoned stays so
else:
    raise AssertionError("a stub gave actions")
open(sys.argv[2], "a").write("close\\n")
policy.close()
"""


@pytest.fixture
def log(bundle_folder: Path, tmp_path: Path, repository: Path) -> list[str]:
    """Lines of the stub for one load, one run and one close."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stub library with")
    library = tmp_path / "libcuda.so.1"
    build = [compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(build, check=True, timeout=60)
    path = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundle_folder), str(path)],
        cwd=repository,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "STUB_LOG": str(path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path.read_text().splitlines()


def test_the_library_sees_the_right_calls(log: list[str]) -> None:
    load, run = log[: log.index("run")], log[log.index("run") + 1 : log.index("close")]
    close = log[log.index("close") + 1 :]

    assert [line for line in load if line.startswith("launch")][:3] == [
        "launch grid 2 1 1 block 128 shared 0 stream 0x22 function 0x44 last 64 attributes",
        "launch grid 2 1 1 block 128 shared 60000 stream 0x22 function 0x44 last 3 "
        "attributes 6=1 4=2 5=1",
        "launch grid 2 1 1 block 128 shared 0 stream 0x22 function 0x44 last 4 attributes",
    ]
    assert (
        "tensor_map aligned 1 type 7 rank 2 dims 4 3 stride 16 box 4 8 steps 1 1 options 0 0 2 0"
        in load
    )
    assert "module machine code of" in load
    assert "set 0x44 8 60000" in load
    assert "begin_capture 0x22 1" in load
    assert load.count("upload 0x66 0x22") == 2
    assert [line.split()[0] for line in run] == [
        *["fill"] * 3,
        *["to_device"] * 5,
        "replay",
        "to_host",
        "synchronize",
    ]
    assert sum(line.startswith("allocate") for line in load) == close.count("free") == 4
    assert load.count("pin") == load.count("unpin") + close.count("unpin")
    assert close[-2:] == ["destroy_stream 0x22", "release"]
