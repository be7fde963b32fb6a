"""The profile loader: the shipped profiles, and every way in which a file can be wrong."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from policyc.profiles.errors import ProfileError
from policyc.profiles.loader import PROFILES_FOLDER, known_targets, load_profile

CHOICE = """
[[choice]]
problem = "linear m=1 n=2 k=3 bf16"
parameters = { num_warps = 4, block_m = 16 }
how = "measured"
microseconds = 3.5
spread = 0.02
date = 2025-03-01
driver = "580.1"
clocks = "1980 MHz"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the shipped h200 profile and one measured choice."""
    text = (PROFILES_FOLDER / "h200.toml").read_text()
    text = text.split("[[choice]]")[0]
    (tmp_path / "h200.toml").write_text(text + CHOICE)
    return tmp_path


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "h200.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("target", "sm_count", "bandwidth"),
    [("h100", 132, 3.35e12), ("h200", 132, 4.8e12), ("h20", 78, 4.0e12)],
)
def test_shipped_profiles(target: str, sm_count: int, bandwidth: float) -> None:
    profile = load_profile(target)
    assert profile.sm_count == sm_count
    assert profile.bandwidth_bytes_per_s == bandwidth
    assert profile.compute_capability == 90
    assert profile.shared_bytes_per_block == 227 * 1024
    assert set(profile.peak_flops) == {"bf16", "tf32", "f32", "fp8", "int8"}
    assert all(profile.sources.values())


@pytest.mark.parametrize("target", known_targets())
def test_only_the_measured_device_shows_measurements(target: str) -> None:
    for choice in load_profile(target).choices.values():
        if choice.measured_on:
            assert choice.how == "model"
            assert choice.microseconds is None
            assert choice.date is None


def test_choice(folder: Path) -> None:
    choice = load_profile("h200", folder).choices["linear m=1 n=2 k=3 bf16"]
    assert choice.parameters == (("block_m", 16), ("num_warps", 4))
    assert (choice.how, choice.microseconds) == ("measured", 3.5)
    assert choice.date == datetime.date(2025, 3, 1)


def test_borrowed_choices_become_a_model(folder: Path) -> None:
    text = (PROFILES_FOLDER / "h20.toml").read_text().split("[[choice]]")[0]
    (folder / "h20.toml").write_text(text)
    choice = load_profile("h20", folder).choices["linear m=1 n=2 k=3 bf16"]
    assert (choice.how, choice.measured_on, choice.microseconds) == ("model", "h200", None)
    assert choice.parameters == (("block_m", 16), ("num_warps", 4))


def test_own_choice_wins_over_borrowed(folder: Path) -> None:
    text = (PROFILES_FOLDER / "h20.toml").read_text().split("[[choice]]")[0]
    (folder / "h20.toml").write_text(text + CHOICE.replace("3.5", "7"))
    choice = load_profile("h20", folder).choices["linear m=1 n=2 k=3 bf16"]
    assert (choice.how, choice.measured_on, choice.microseconds) == ("measured", "", 7.0)


def test_borrowing_from_a_borrower(folder: Path) -> None:
    edit(folder, "[facts]", 'choices_from = "h200"\n[facts]')
    with pytest.raises(ProfileError, match="has no choices of its own"):
        load_profile("h200", folder)


def test_unknown_target_lists_the_known(folder: Path) -> None:
    with pytest.raises(ProfileError, match="unknown target 'thor9'; known targets: h200"):
        load_profile("thor9", folder)
    with pytest.raises(ProfileError, match="unknown target"):
        load_profile("../profiles/h200", folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "[features]",
            "[features]\nfp4 = { value = true, source = 's' }",
            "unknown key fp4; known",
        ),
        ("[facts]", "colour = 1\n[facts]", "unknown key colour"),
        (
            "[facts]",
            "[facts]\nspeed = { value = 1, source = 's' }",
            "unknown key speed; known keys: name",
        ),
        ("sm_count = {", "sm_counts = {", "no 'sm_count' (dict); it has"),
        ("value = 132", "value = 132.0", "expected int, got float"),
        ("value = 132", "value = -1", "expected a positive integer, got -1"),
        ("value = 132", "value = true", "expected int, got bool"),
        ("[peak_flops]", "[peak_flops]\nf17 = { value = 1, source = 's' }", "unknown key f17"),
        ("spread = 0.02", "", "no 'spread' (float)"),
        ("spread = 0.02", "spread = 0.02\nmood = 1", "unknown key mood"),
        ('how = "measured"', 'how = "guessed"', "unknown 'guessed'; known: measured, model"),
        ('how = "measured"', 'how = "model"', "unknown key clocks, date, driver, spread"),
        ("num_warps = 4", "num_warps = 4.5", "expected int, got float 4.5"),
        ("2025-03-01", '"March"', "expected date, got str"),
        ("[facts]", "[facts", "not a TOML file"),
    ],
)
def test_wrong_files(folder: Path, old: str, new: str, message: str) -> None:
    edit(folder, old, new)
    with pytest.raises(ProfileError, match=re.escape(message)):
        load_profile("h200", folder)


def test_problem_given_twice(folder: Path) -> None:
    path = folder / "h200.toml"
    path.write_text(path.read_text() + CHOICE)
    with pytest.raises(ProfileError, match="was already given"):
        load_profile("h200", folder)


def test_empty_source(folder: Path) -> None:
    edit(folder, 'source = "NVIDIA H200 data sheet', 'source = "" } #')
    with pytest.raises(ProfileError, match="name.source: is empty"):
        load_profile("h200", folder)


def test_oversized_file(folder: Path) -> None:
    with (folder / "h200.toml").open("ab") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    with pytest.raises(ProfileError, match="expected at most"):
        load_profile("h200", folder)
