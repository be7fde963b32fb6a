"""The robot's side: a plain install, a read-only bundle, no frameworks, no network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from policyc.compiler.options import Precision
from tests.compiled import CompiledBundles
from tests.oracles import oracle
from tests.test_packaging import copy_of

INSTALL_LIMIT_BYTES = 150_000_000
FIRST_ACTION_SECONDS = 1.5
HEAVY = ("torch", "triton", "transformers", "tokenizers", "onnx", "safetensors", "cuda")

SCRIPT = """
import pathlib, sys, time
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy!r}:
            raise ModuleNotFoundError(name + " is blocked", name=name)
        return None

def no_socket(event, arguments):
    if event.startswith("socket."):
        raise RuntimeError("a socket was opened: " + event)

sys.meta_path.insert(0, Blocker())
sys.addaudithook(no_socket)
folder, observation_path, result_path = sys.argv[1:]
started = time.perf_counter()
import numpy as np
import policyc
with np.load(observation_path) as given:
    observation = dict(
        images=dict(base_0_rgb=given["base"], left_wrist_0_rgb=given["wrist"]),
        state=given["state"],
        prompt=str(given["prompt"]),
    )
    noise = given["noise"]
with policyc.Policy.load(folder, device="cpu") as policy:
    actions = policy.infer(observation, noise=noise)
    seconds = time.perf_counter() - started
if {with_null}:
    from policyc.runtime_min.processing import Processing
    tensors = Processing.load(pathlib.Path(folder)).prepare(observation)
    with policyc.Policy.load(folder, device="null") as policy:
        policy.run_for_comparison({{**tensors, "noise": noise[None]}}, ("actions",))
        assert sum(call.name == "launch_graph" for call in policy.executor.driver.calls) == 2
np.savez(result_path, actions=actions)
loaded = sorted(set({heavy!r}) & set(sys.modules))
assert not loaded, loaded
print(policyc.__file__, seconds)
"""


@pytest.fixture(scope="module")
def observation_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded case whose third camera does not count."""
    fixture = oracle("pi05_fp32")
    pictures = fixture.reference("masked", "in/images_u8")
    path = tmp_path_factory.mktemp("observation") / "observation.npz"
    np.savez(
        path,
        base=pictures[0],
        wrist=pictures[1],
        state=fixture.reference("masked", "in/state_raw"),
        prompt=np.array(fixture.cases["masked"]["prompt"]),
        noise=fixture.reference("masked", "in/noise"),
    )
    return path


@pytest.fixture(scope="module")
def gpu_bundle(oracles: Path, compiled: CompiledBundles) -> Path:
    return compiled(
        oracles / "pi05_fp32" / "openpi",
        targets=("h100",),
        precision=Precision.BF16,
        prompt_slots=64,
    )


@pytest.fixture
def read_only(gpu_bundle: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the bundle that nobody may write to."""
    copy = shutil.copytree(gpu_bundle, tmp_path / "robot" / "arm.policy")
    folders = [copy, *(path for path in copy.rglob("*") if path.is_dir())]
    for path in copy.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    copy.chmod(0o555)
    yield copy
    for folder in folders:
        folder.chmod(0o755)


@pytest.fixture(scope="module")
def robot_python(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with `pip install .` and nothing else."""
    folder = tmp_path_factory.mktemp("robot")
    subprocess.run((sys.executable, "-m", "venv", str(folder / "venv")), check=True)
    python = folder / "venv" / "bin" / "python"
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    constraints = ("-c", str(repository / "constraints.txt"))
    source = copy_of(repository, folder)
    done = subprocess.run((*pip, *constraints, str(source)), capture_output=True, text=True)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip(f"no package index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return python


def run_script(
    python: Path, arguments: tuple[Path, ...], folder: Path, path: str, with_null: bool = True
) -> list[str]:
    """What the script prints: where policyc lies, and seconds to the first action."""
    script = SCRIPT.format(heavy=HEAVY, with_null=with_null)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": path}
    done = subprocess.run(
        (str(python), "-c", script, *map(str, arguments)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def installed_bytes(python: Path) -> int:
    """Size of everything in site-packages but pip and setuptools, which the environment brings."""
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return sum(
        path.stat().st_size
        for path in site.rglob("*")
        if path.is_file()
        and not path.relative_to(site).parts[0].startswith(("pip", "setuptools", "_distutils"))
        and path.suffix != ".pyc"
    )


@pytest.mark.slow
def test_plain_install_acts_alone(
    robot_python: Path, read_only: Path, observation_file: Path, tmp_path: Path
) -> None:
    """Case 70, case 18, case 55, case 58: light, no framework, no socket, nothing written."""
    assert installed_bytes(robot_python) < INSTALL_LIMIT_BYTES
    before = {path: path.stat().st_mtime_ns for path in read_only.rglob("*")}
    work = tmp_path / "work"
    work.mkdir()
    result = work / "actions.npz"
    where, _ = run_script(robot_python, (read_only, observation_file, result), work, "")
    assert Path(where).is_relative_to(robot_python.parents[1])
    assert {path: path.stat().st_mtime_ns for path in read_only.rglob("*")} == before
    assert [path.name for path in work.iterdir()] == ["actions.npz"]
    with np.load(result) as archive:
        error = archive["actions"] - oracle("pi05_fp32").reference("masked", "ref64/actions_robot")
    # Twice the largest error of the official bf16 code in robot units (README of the fixtures).
    assert np.abs(error).max() <= 2 * 9.4e-2
    for module in HEAVY:
        code = f"import importlib.util; assert importlib.util.find_spec({module!r}) is None"
        subprocess.run((str(robot_python), "-c", code), check=True, cwd=work)


def test_first_action_comes_soon(
    oracles: Path,
    compiled: CompiledBundles,
    observation_file: Path,
    repository: Path,
    tmp_path: Path,
) -> None:
    """Case 81: import, load and first action in a fresh process; the best of three."""
    bundle = compiled(oracles / "pi05_fp32" / "openpi", prompt_slots=64, steps=10)
    files = (bundle, observation_file, tmp_path / "actions.npz")
    python = Path(sys.executable)
    runs = (run_script(python, files, tmp_path, str(repository), False) for _ in range(3))
    assert min(float(seconds) for _, seconds in runs) < FIRST_ACTION_SECONDS
