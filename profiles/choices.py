"""Choice files: a table of kernel choices outside a profile, and how it gets into one.

target = "h200"

[[choice]]
problem = "linear m=968 n=2560 k=2048 bf16"
parameters = { block_k = 64, block_m = 128 }
how = "measured"
microseconds = 16.2
spread = 0.004
date = 2026-01-31
driver = "580.95"
clocks = "sm 1980 MHz, memory 2619 MHz"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from policyc.profiles.errors import ProfileError
from policyc.profiles.loader import (
    LARGEST_PROFILE_BYTES,
    PROFILES_FOLDER,
    as_model,
    load_profile,
    read_choices,
    read_table,
)
from policyc.profiles.profile import Choice

_HEADER = "[[choice]]"


def load_choices(path: Path) -> tuple[str, dict[str, Choice]]:
    """The target that a choice file was measured on, and its choices by problem.

    Raises:
        ProfileError: no such file, or one that breaks the schema.
    """
    if not path.is_file():
        raise ProfileError(f"{path}: no such choice file. `policyc tune` writes one.")
    table = read_table(path)
    target = table.take("target", str)
    choices = read_choices(table)
    table.done()
    return target, choices


def combined(target: str, own: Mapping[str, Choice], path: Path) -> dict[str, Choice]:
    """The choices of a target with those of a file carried in.

    A file of the same target goes before the profile. One of another device is a model here, and
    fills in only what the profile has not measured itself.
    """
    measured_on, carried = load_choices(path)
    if measured_on == target:
        return {**own, **carried}
    lent = {problem: as_model(choice, measured_on) for problem, choice in carried.items()}
    kept = {problem: choice for problem, choice in own.items() if choice.how == "measured"}
    return {**own, **lent, **kept}


def choices_text(choices: Iterable[Choice], remarks: Mapping[str, str] | None = None) -> str:
    """Choices as TOML, sorted by problem; `remarks` are comments above them, by problem."""
    notes = remarks or {}
    ordered = sorted(choices, key=lambda choice: choice.problem)
    return "\n".join(_text(choice, notes.get(choice.problem, "")) for choice in ordered)


def file_text(target: str, choices: Iterable[Choice], remarks: Mapping[str, str]) -> str:
    """A whole choice file."""
    return f"target = {_quoted(target)}\n\n{choices_text(choices, remarks)}"


def merge_choices(target: str, choices: Iterable[Choice], folder: Path = PROFILES_FOLDER) -> Path:
    """Put choices into a target's profile, in place of those for the same problems.

    The facts keep their text; the table of choices is written anew, sorted by problem.

    Raises:
        ProfileError: unknown target; other tables after the choices; too many choices.
    """
    load_profile(target, folder)
    path = folder / f"{target}.toml"
    known = read_table(path)
    merged = {**read_choices(known), **{choice.problem: choice for choice in choices}}
    before = path.read_text("utf-8")
    facts = before.split(_HEADER, 1)[0].rstrip()
    text = f"{facts}\n\n{choices_text(merged.values())}"
    if len(text) > LARGEST_PROFILE_BYTES:
        raise ProfileError(f"{path}: would have {len(text)} bytes; keep fewer choices.")
    lost = set(tomllib.loads(before)) - set(tomllib.loads(text))
    if lost:
        raise ProfileError(f"{path}: {', '.join(sorted(lost))} after the choices; move it up.")
    aside = path.with_name(path.name + ".partial")
    aside.write_text(text, "utf-8")
    aside.replace(path)
    return path


def _text(choice: Choice, remark: str) -> str:
    parameters = ", ".join(f"{name} = {value}" for name, value in choice.parameters)
    lines = [f"# {line}" for line in remark.splitlines()]
    lines += [
        _HEADER,
        f"problem = {_quoted(choice.problem)}",
        f"parameters = {{ {parameters} }}",
        f"how = {_quoted(choice.how)}",
    ]
    if choice.microseconds is not None:
        lines.append(f"microseconds = {choice.microseconds!r}")
    if choice.how == "measured":
        assert choice.spread is not None and choice.date is not None, choice.problem
        lines += [
            f"spread = {choice.spread!r}",
            f"date = {choice.date.isoformat()}",
            f"driver = {_quoted(choice.driver)}",
            f"clocks = {_quoted(choice.clocks)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are a subset of its own."""
    return json.dumps(text)
