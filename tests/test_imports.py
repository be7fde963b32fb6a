"""The house rules that a tree can show: import edges, sizes, names."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.source import REPOSITORY, Source, imported_modules, sources

EVERYTHING = frozenset(
    {
        "backends",
        "compiler",
        "compiler.ir",
        "frontends",
        "kernels",
        "passes",
        "profiles",
        "runtime_min",
    }
)
NUMERIC = frozenset({"numpy", "ml_dtypes"})

# Folder -> folders of ours it may import (shared/style.md, section 1).
OURS = {
    "runtime_min": frozenset({"runtime_min", "compiler.ir"}),
    "compiler.ir": frozenset({"compiler.ir"}),
    "profiles": frozenset({"profiles"}),
    "frontends": frozenset({"frontends", "compiler.ir"}),
    "passes": frozenset({"passes", "compiler.ir", "profiles"}),
    "kernels": frozenset({"kernels", "compiler.ir"}),
    "backends": frozenset({"backends", "compiler.ir", "kernels", "profiles", "runtime_min"}),
    "compiler": EVERYTHING,
    "policyc": frozenset({"runtime_min", "compiler"}),
}

# Folder -> packages of others it may import.
OTHERS = {
    "runtime_min": NUMERIC,
    "compiler.ir": NUMERIC,
    "profiles": frozenset(),
    "frontends": NUMERIC | {"torch"},
    "passes": NUMERIC,
    "kernels": NUMERIC,
    "backends": NUMERIC | {"triton"},
    "compiler": NUMERIC | {"torch", "triton"},
    "policyc": frozenset(),
}

# Packages that only files matching the pattern may import, on top of the table above.
IN_SOME_FILES = {
    r"runtime_min/.*(processing|tokeniz|image|resize).*\.py": {
        "sentencepiece",
        "tokenizers",
        "PIL",
    },
    r"runtime_min/(.*/)?[^/]*driver[^/]*\.py": {"cuda"},
    r"kernels/(?!.*spec).*\.py": {"triton"},
    r"compiler/(cli/.*|demo)\.py": {"typer", "rich"},
    r"compiler/roofline\.py": {"matplotlib"},
}


def group_of(module: str) -> str:
    """The row of the table that `policyc.x.y` belongs to."""
    parts = module.split(".")
    if parts[1:3] == ["compiler", "ir"]:
        return "compiler.ir"
    return parts[1]


def packages_allowed(source: Source) -> frozenset[str]:
    allowed = OTHERS[source.group]
    for pattern, packages in IN_SOME_FILES.items():
        if re.fullmatch(pattern, source.path.as_posix()):
            allowed |= packages
    return allowed


def forbidden_imports(source: Source) -> Iterator[str]:
    for module, line in imported_modules(source.tree):
        package = module.split(".")[0]
        if package == "policyc":
            if module in ("policyc.__version__", "policyc.Policy"):
                continue
            if group_of(module) not in OURS[source.group]:
                yield f"{source.path}:{line} imports {module}"
        elif package not in sys.stdlib_module_names and package not in packages_allowed(source):
            yield f"{source.path}:{line} imports {module}"


def test_only_the_allowed_import_edges() -> None:
    assert [edge for source in sources() for edge in forbidden_imports(source)] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("passes/a.py", "def f():\n    import triton\n"),
        ("passes/a.py", "from policyc.backends import lower\n"),
        ("passes/a.py", "from policyc import backends\n"),
        ("frontends/a.py", "from policyc.passes.fold import fold\n"),
        ("runtime_min/a.py", "from policyc.compiler.options import Precision\n"),
        ("runtime_min/policy.py", "import sentencepiece\n"),
        ("kernels/spec_linear.py", "import triton\n"),
        ("compiler/ir/a.py", "import torch\n"),
        ("compiler/bench.py", "import typer\n"),
    ],
)
def test_a_forbidden_edge_is_found(path: str, text: str) -> None:
    source = Source(path=type(REPOSITORY)(path), text=text, tree=ast.parse(text))
    assert len(list(forbidden_imports(source))) == 1


def test_modules_are_imported_by_name_only_where_kernels_are_loaded() -> None:
    dynamic = [
        str(source.path)
        for source in sources()
        if source.group not in ("backends", "compiler")
        and any(
            module.split(".")[0] == "importlib" and not module.startswith("importlib.metadata")
            for module, _ in imported_modules(source.tree)
        )
    ]
    assert dynamic == []
    assert [str(source.path) for source in sources() if "__import__(" in source.text] == []


def test_environment_variables_are_read_in_one_file() -> None:
    readers = [
        str(source.path)
        for source in sources()
        if re.search(r"\bos\.(environ|getenv)\b|from os import .*(environ|getenv)", source.text)
    ]
    assert len(readers) <= 1, readers


def test_code_folders_have_no_init_at_their_own_root() -> None:
    roots = [source.path for source in sources() if len(source.path.parts) == 2]
    found = [str(path) for path in roots if path.name == "__init__.py"]
    assert found == ["policyc/__init__.py"]


def test_init_files_only_reexport() -> None:
    for source in sources():
        if source.path.name != "__init__.py" or source.group == "policyc":
            continue
        kinds = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
        wrong = [type(node).__name__ for node in source.tree.body if not isinstance(node, kinds)]
        assert wrong == [], source.path


def test_files_stay_below_the_hard_limit() -> None:
    every = (*sources(), *sources(("tests",)))
    too_long = {str(source.path): source.text.count("\n") for source in every}
    assert {path: lines for path, lines in too_long.items() if lines > 600} == {}


def test_functions_stay_below_the_hard_limit() -> None:
    too_long = {}
    for source in (*sources(), *sources(("tests",))):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > 80:
                    too_long[f"{source.path}:{node.lineno} {node.name}"] = lines
    assert too_long == {}


MODELS = {"pi0", "pi05", "gr00t", "minicpm", "cosmos3", "siglip", "gemma", "paligemma"}
DEVICES = {
    "hopper",
    "blackwell",
    "ampere",
    "ada",
    "jetson",
    "sm86",
    "sm89",
    "sm90",
    "sm110",
    "sm120",
}
PRECISIONS = {
    *("bf16", "bfloat16", "f16", "fp16", "float16", "f32", "fp32", "float32", "fp8", "int8"),
    *("e4m3", "nvfp4", "w4a16", "w8a16", "w8a8", "w4a8"),
}
FRAMEWORKS = {"torch", "triton", "jax", "openpi", "lerobot", "onnx", "tensorrt"}


def device_names() -> set[str]:
    return DEVICES | {path.stem for path in (REPOSITORY / "profiles").glob("*.toml")}


def words(name: str) -> set[str]:
    """`GemmaH100Linear` and `gemma_h100_linear` -> gemma, h100, linear."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word.lower() for word in spaced.split("_") if word}


def kinds_joined(name: str) -> int:
    vocabularies = (MODELS, device_names(), PRECISIONS, FRAMEWORKS)
    return sum(bool(words(name) & vocabulary) for vocabulary in vocabularies)


def test_no_name_joins_two_of_model_device_precision_framework() -> None:
    names = []
    for source in (*sources(), *sources(("tests",))):
        names.append(source.path.stem)
        names.extend(node.name for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef))
    assert [name for name in names if kinds_joined(name) > 1] == []
    assert kinds_joined("Pi05TorchModel") == 2 and kinds_joined("linear_bf16_hopper") == 2
    assert kinds_joined("gated_linear") == 0 and kinds_joined("pi05") == 1


def test_ruff_knows_every_code_folder() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    banned = settings["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    folders = {path.name for path in (REPOSITORY / "policyc").iterdir() if path.is_symlink()}
    assert folders and folders <= set(banned)
