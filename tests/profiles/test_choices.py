from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from policyc.profiles.choices import combined, file_text, load_choices, merge_choices
from policyc.profiles.errors import ProfileError
from policyc.profiles.loader import PROFILES_FOLDER, load_profile
from policyc.profiles.profile import Choice


def measured(problem: str, block: int, microseconds: float = 5.0) -> Choice:
    return Choice(
        problem=problem,
        parameters=(("block_m", block), ("num_warps", 4)),
        how="measured",
        microseconds=microseconds,
        spread=0.01,
        date=datetime.date(2026, 1, 31),
        driver='580.1 "beta"',
        clocks="sm 1980 MHz",
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "choices.toml"
    choices = (measured("b", 64), measured("a", 32))
    path.write_text(file_text("h200", choices, {"a": "12 candidates\nnext: none"}))
    return path


def test_a_file_is_read_back_equal(file: Path) -> None:
    text = file.read_text()
    assert text.index("# 12 candidates\n# next: none\n[[choice]]") < text.index('problem = "b"')
    assert load_choices(file) == ("h200", {"a": measured("a", 32), "b": measured("b", 64)})


def test_a_file_of_the_target_goes_before_the_profile(file: Path) -> None:
    own = {"a": measured("a", 128), "c": measured("c", 16)}
    found = combined("h200", own, file)
    assert found == {"a": measured("a", 32), "b": measured("b", 64), "c": measured("c", 16)}


def test_a_file_of_another_device_is_a_model(file: Path) -> None:
    found = combined("h100", {"a": measured("a", 128)}, file)
    assert found["a"] == measured("a", 128)
    lent = found["b"]
    assert (lent.how, lent.microseconds, lent.measured_on) == ("model", None, "h200")


def test_merging_keeps_the_facts_and_replaces_choices(tmp_path: Path) -> None:
    source = (PROFILES_FOLDER / "h200.toml").read_text().split("[[choice]]")[0]
    path = tmp_path / "h200.toml"
    path.write_text(source)
    facts = load_profile("h200", tmp_path)
    assert merge_choices("h200", [measured("a", 64), measured("b", 64)], tmp_path) == path
    merge_choices("h200", [measured("a", 16)], tmp_path)
    once = path.read_text()
    merge_choices("h200", [measured("a", 16)], tmp_path)
    assert path.read_text() == once and once.startswith(source.rstrip())
    merged = load_profile("h200", tmp_path)
    assert merged.choices == {"a": measured("a", 16), "b": measured("b", 64)}
    assert replace(merged, choices={}) == replace(facts, choices={})
    assert list(tmp_path.iterdir()) == [path]


def test_tables_after_the_choices_are_not_lost(tmp_path: Path) -> None:
    text = (PROFILES_FOLDER / "h200.toml").read_text().split("[[choice]]")[0]
    head, features = text.split("[features]")
    choice = file_text("h200", [measured("a", 64)], {}).partition("\n")[2]
    (tmp_path / "h200.toml").write_text(f"{head}{choice}\n[features]{features}")
    with pytest.raises(ProfileError, match="features after the choices"):
        merge_choices("h200", [measured("b", 64)], tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no 'target'"),
        ('target = "h200"\nother = 1', "unknown key other"),
        ("target = ", "not a TOML file"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "choices.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        load_choices(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such choice file"):
        load_choices(tmp_path / "none.toml")
