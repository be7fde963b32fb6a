from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from policyc.compiler.targets import open_targets
from policyc.profiles.choices import file_text
from policyc.profiles.errors import ProfileError
from policyc.profiles.profile import Choice


def test_a_choice_file_joins_the_profiles(tmp_path: Path) -> None:
    choice = Choice(
        problem="linear made up",
        parameters=(("block_m", 64),),
        how="measured",
        microseconds=5.0,
        spread=0.01,
        date=datetime.date(2026, 1, 31),
        driver="580.1",
        clocks="sm 1980 MHz",
    )
    path = tmp_path / "choices.toml"
    path.write_text(file_text("h200", [choice], {}))
    profiles = open_targets(["cpu", "h200", "h100"], path).profiles
    assert profiles["h200"].choices["linear made up"] == choice
    lent = profiles["h100"].choices["linear made up"]
    assert (lent.how, lent.measured_on, lent.microseconds) == ("model", "h200", None)
    assert "linear made up" not in open_targets(["h200"]).profiles["h200"].choices


def test_a_missing_choice_file_stops_the_compile(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such choice file"):
        open_targets(["h200"], tmp_path / "none.toml")
