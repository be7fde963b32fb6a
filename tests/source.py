"""The repository's Python files as syntax trees, for the tests of the house rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
CODE_FOLDERS = (
    "backends",
    "compiler",
    "frontends",
    "kernels",
    "passes",
    "profiles",
    "runtime_min",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file: its path from the root of the repository, its text and its tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def group(self) -> str:
        """The row of the import table it belongs to."""
        if self.path.parts[:2] == ("compiler", "ir"):
            return "compiler.ir"
        return self.path.parts[0]


@cache
def sources(folders: tuple[str, ...] = (*CODE_FOLDERS, "policyc")) -> tuple[Source, ...]:
    """Every Python file below the folders, in order of its path, symlinks not followed."""
    found = []
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            relative = path.relative_to(REPOSITORY)
            if folder == "policyc" and len(relative.parts) > 2:
                continue
            text = path.read_text(encoding="utf-8")
            found.append(Source(path=relative, text=text, tree=ast.parse(text, str(relative))))
    return tuple(found)


def imported_modules(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of everything imported anywhere in the file, inside functions too.

    `from a.b import c` gives `a.b.c`: whether `c` is a module or a name in one, the prefix decides.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"relative import at line {node.lineno}"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno
