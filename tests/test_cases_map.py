"""Every known trouble has its tests, or a reason why there is none."""

from __future__ import annotations

import ast
import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.source import REPOSITORY

NUMBERS = range(1, 86)
PAGE = REPOSITORY / "docs" / "troubles.md"
HEAD = """\
# Known troubles

What users of comparable tools ran into, by the numbers of `shared/cases_open.md`,
what policyc does about it, and where that is tested. Made from `tests/cases.toml`,
which names the tests.

| no. | trouble | here | tested in |
|---|---|---|---|
"""


@cache
def cases() -> dict[int, dict[str, Any]]:
    content = tomllib.loads((REPOSITORY / "tests" / "cases.toml").read_text(encoding="utf-8"))
    return {int(number): case for number, case in content.items()}


@cache
def functions(path: str) -> frozenset[str]:
    """Names of the test functions in a file."""
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return frozenset(name for name in names if name.startswith("test_"))


def test_every_number_is_there() -> None:
    assert list(cases()) == list(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_named_tests_exist_or_a_reason_is_given(number: int) -> None:
    case = cases()[number]
    assert case["trouble"]
    if "tests" not in case:
        assert set(case) == {"trouble", "reason"} and len(case["reason"]) > 20
        return
    assert set(case) == {"trouble", "answer", "tests"} and case["answer"] and case["tests"]
    for name in case["tests"]:
        path, _, function = name.partition("::")
        assert (REPOSITORY / path).is_file(), f"{name}: no such file"
        assert function in functions(path), f"{name}: no such test"
    assert len(set(case["tests"])) == len(case["tests"])


def files_of(tests: list[str]) -> str:
    names = dict.fromkeys(Path(name.partition("::")[0]).stem for name in tests)
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    rows = []
    for number, case in cases().items():
        where = files_of(case.get("tests", []))
        answer = case.get("answer") or case["reason"]
        rows.append(f"| {number} | {case['trouble']} | {answer} | {where} |\n")
    return HEAD + "".join(rows)


def test_the_page_is_made_from_the_map() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), "run with UPDATE_GOLDEN=1 and read the diff"
