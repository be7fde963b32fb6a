"""Every case of `cases/<pass>/<case>.ir`, and which cases there must be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policyc.compiler.ir.errors import IrError
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.pipeline import PIPELINE
from tests.passes.harness import (
    CASES,
    SAME,
    assert_same_values,
    check_case,
    read_case,
)

FILES = sorted(CASES.glob("*/*.ir"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_case(path: Path) -> None:
    check_case(read_case(path), update=os.environ.get("UPDATE_GOLDEN") == "1")


@pytest.mark.parametrize("name", [row.name for row in PIPELINE])
def test_every_pass_has_its_cases(name: str) -> None:
    """One that changes, `nothing_to_do`, and at least one that almost matches."""
    cases = {path.stem: read_case(path) for path in FILES if path.parent.name == name}
    assert any(case.after != SAME for case in cases.values()), f"{name}: no case that changes"
    assert "nothing_to_do" in cases and cases["nothing_to_do"].after == SAME
    almost = [stem for stem in cases if stem.startswith("almost_")]
    assert almost, f"{name}: no case that almost matches"


def test_cases_are_of_passes() -> None:
    known = {row.name for row in PIPELINE}
    assert {path.parent.name for path in FILES} <= known


BEFORE = """\
input x: f32[2,4] rate=observation
weight @w: f32[3,4]
output y

stage s rate=observation (x: f32[2,4]) -> (y: f32[2,3]) {
  y: f32[2,3] = linear(x, @w)
}
"""


def write(folder: Path, after: str, name: str = "drop_unused") -> Path:
    path = folder / name / "case.ir"
    path.parent.mkdir(parents=True)
    path.write_text(f"# A case.\n--- before\n{BEFORE}--- after\n{after}")
    return path


def test_the_harness_notices_a_wrong_text(tmp_path: Path) -> None:
    check_case(read_case(write(tmp_path, SAME)), update=False)
    with pytest.raises(AssertionError, match="got\nsame object"):
        check_case(read_case(write(tmp_path / "b", BEFORE)), update=False)


def test_the_harness_rewrites_on_demand(tmp_path: Path) -> None:
    path = write(tmp_path, "old\n")
    check_case(read_case(path), update=True)
    assert read_case(path).after == SAME and read_case(path).before == BEFORE


def test_the_harness_notices_other_values() -> None:
    before = parse_graph(BEFORE)
    other = BEFORE.replace("linear(x, @w)", "linear(x, @w) {activation=silu}")
    with pytest.raises(AssertionError, match="y moves by"):
        assert_same_values(before, parse_graph(other), 1e-3)


def test_a_text_that_breaks_a_rule_is_no_case(tmp_path: Path) -> None:
    path = write(tmp_path, SAME)
    path.write_text(path.read_text().replace("f32[3,4]", "f32[3,5]"))
    with pytest.raises(IrError):
        check_case(read_case(path), update=False)
