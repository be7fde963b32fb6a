"""The runtime in a process of its own, where torch, triton and the compiler cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from importlib.abc import MetaPathFinder

BLOCKED = {BLOCKED!r}
ALLOWED = ("policyc.compiler", "policyc.compiler.ir", "policyc.runtime_min")

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        own = name.startswith("policyc.") and not name.startswith(ALLOWED)
        compiler = name.startswith("policyc.compiler.") and not name.startswith(ALLOWED[1])
        if name.split(".")[0] in BLOCKED or own or compiler:
            raise ImportError(name + " is blocked")
        return None

sys.meta_path.insert(0, Blocker())

def no_socket(event, arguments):
    if event.startswith("socket."):
        raise RuntimeError("the runtime opened a socket")

sys.addaudithook(no_socket)
started = time.perf_counter()
import policyc
assert "numpy" not in sys.modules, "import policyc is light"

import numpy as np
picture = np.zeros((4, 4, 3), np.uint8)
observation = {{"images": {{"front": picture, "wrist": picture}}, "prompt": "pick up the cup"}}
with policyc.Policy.load({folder!r}, "cpu") as policy:
    actions = policy.infer(observation, seed=0)
assert actions.shape == (3, 2), actions.shape
seconds = time.perf_counter() - started
with policyc.Policy.load({folder!r}, "null") as policy:
    driver = policy.executor.driver
    assert [call.name for call in driver.calls].count("launch_graph") == 2
assert driver.is_empty
print(seconds)
"""
BLOCKED = ("torch", "triton", "transformers", "safetensors", "cuda", "onnx")


@pytest.fixture
def seconds(robot_bundle_folder: Path, repository: Path) -> float:
    script = SCRIPT.format(BLOCKED=BLOCKED, folder=str(robot_bundle_folder))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_loads_and_acts_alone_and_soon(seconds: float) -> None:
    """case 70, case 58: no framework, no compiler, no driver, no socket; first action in seconds.

    The budget is 1.5 s; a busy machine gets three times as much.
    """
    assert seconds < 4.5
