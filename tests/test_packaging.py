"""What an installed policyc holds and needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.source import CODE_FOLDERS

BASE_INSTALL_LIMIT_BYTES = 150_000_000
HEAVY = {"torch", "triton", "transformers", "tokenizers", "huggingface-hub", "onnx", "matplotlib"}

IMPORT_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
for path in sorted((root / "policyc").rglob("*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    if name.endswith("__main__"):
        continue
    module = importlib.import_module(name.removesuffix(".__init__"))
    assert module.__file__ and pathlib.Path(module.__file__).is_relative_to(root), module
    print(name)
"""

RUNTIME_ONLY = """
import importlib, pathlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        heavy = parts[0] in ("torch", "triton", "transformers", "tokenizers", "onnx", "cuda")
        ours = parts[0] == "policyc" and len(parts) > 1
        light = ours and (parts[1] == "runtime_min" or name == "policyc.compiler"
                          or parts[1:3] == ["compiler", "ir"])
        if heavy or (ours and not light):
            raise ImportError(f"{name} must not be imported by the runtime")
        return None

sys.meta_path.insert(0, Refuse())
root = pathlib.Path(sys.argv[1])
for path in sorted((root / "policyc" / "runtime_min").rglob("*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    importlib.import_module(name.removesuffix(".__init__"))
    print(name)
"""


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `pip install` of the checkout puts into site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    command = (
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *(
            "--disable-pip-version-check",
            "--wheel-dir",
            str(folder),
            str(copy_of(repository, folder)),
        ),
    )
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("policyc-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def copy_of(repository: Path, folder: Path) -> Path:
    """The files that git would commit, so that building leaves nothing in the checkout."""
    copy = folder / "checkout"
    listed = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        cwd=repository,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = repository / name, copy / name
        if name.startswith("artifacts/") or not (source.is_symlink() or source.exists()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        else:
            target.write_bytes(source.read_bytes())
    return copy


def test_wheel_holds_every_source_and_data_file(repository: Path, installed: Path) -> None:
    wanted = {
        f"policyc/{path.relative_to(repository).as_posix()}"
        for folder in CODE_FOLDERS
        for pattern in ("*.py", "*.toml", "*.model", "*.json")
        for path in (repository / folder).rglob(pattern)
    }
    wanted |= {"policyc/__init__.py", "policyc/__main__.py", "policyc/py.typed"}
    found = {
        path.relative_to(installed).as_posix()
        for path in installed.rglob("*")
        if path.is_file() and ".dist-info" not in path.as_posix()
    }
    assert found == wanted


def test_every_module_imports_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    printed = run_python(IMPORT_ALL, installed, tmp_path)
    assert "policyc.__init__" in printed and len(printed) > 10


def test_runtime_imports_without_compiler_and_torch(installed: Path, tmp_path: Path) -> None:
    assert run_python(RUNTIME_ONLY, installed, tmp_path)


def test_import_of_the_package_is_light(installed: Path, tmp_path: Path) -> None:
    code = "import policyc, sys; print(*sorted(m for m in sys.modules if m in ('numpy', 'torch')))"
    assert run_python(code, installed, tmp_path) == []


def run_python(code: str, site: Path, folder: Path) -> list[str]:
    """Words printed by `code` in a process that sees `site` before anything else."""
    done = subprocess.run(
        (sys.executable, "-c", code, str(site)),
        cwd=folder,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def base_closure(repository: Path) -> dict[str, metadata.Distribution]:
    """Everything that the base install brings, by canonical name, as installed here."""
    settings = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    waiting = [Requirement(text) for text in settings["project"]["dependencies"]]
    closure: dict[str, metadata.Distribution] = {}
    while waiting:
        requirement = waiting.pop()
        name = canonical(requirement.name)
        marker = requirement.marker
        if name in closure or (marker and not marker.evaluate({"extra": ""})):
            continue
        closure[name] = metadata.distribution(requirement.name)
        waiting.extend(map(Requirement, closure[name].requires or ()))
    return closure


def test_base_install_is_light(repository: Path) -> None:
    closure = base_closure(repository)
    assert {"numpy", "sentencepiece", "typer"} <= set(closure)
    assert not HEAVY & set(closure)
    sizes = {name: installed_bytes(distribution) for name, distribution in closure.items()}
    assert sum(sizes.values()) < BASE_INSTALL_LIMIT_BYTES, sizes


def installed_bytes(distribution: metadata.Distribution) -> int:
    paths = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())
