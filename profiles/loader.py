"""Reads `profiles/<target>.toml`. Strict: unknown keys and wrong types are errors."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from policyc.profiles.errors import ProfileError
from policyc.profiles.profile import Choice, How, Profile
from policyc.profiles.table import Table

PROFILES_FOLDER = Path(__file__).parent
LARGEST_PROFILE_BYTES = 16 * 1024 * 1024
PEAK_DTYPES = ("bf16", "tf32", "f32", "fp8", "int8")

T = TypeVar("T", int, float, bool, str)


def known_targets(folder: Path = PROFILES_FOLDER) -> tuple[str, ...]:
    """Names of the profiles in a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def load_profile(target: str, folder: Path = PROFILES_FOLDER) -> Profile:
    """The profile of a target, with the choices that it takes over from another one.

    Raises:
        ProfileError: unknown target, or a file that breaks the schema.
    """
    table = _open(target, folder)
    lender = table.take_if_present("choices_from", str)
    facts, features = table.table("facts"), table.table("features")
    peaks = table.table("peak_flops")
    choices = read_choices(table)
    table.done()
    sources: dict[str, str] = {}
    profile = Profile(
        target=target,
        name=_fact(facts, "name", str, sources),
        compute_capability=_positive(facts, "compute_capability", sources),
        sm_count=_positive(facts, "sm_count", sources),
        shared_bytes_per_block=_positive(facts, "shared_bytes_per_block", sources),
        registers_per_block=_positive(facts, "registers_per_block", sources),
        l2_bytes=_positive(facts, "l2_bytes", sources),
        memory_bytes=_positive(facts, "memory_bytes", sources),
        bandwidth_bytes_per_s=_fact(facts, "bandwidth_bytes_per_s", float, sources),
        unified_memory=_fact(facts, "unified_memory", bool, sources),
        has_dependent_launch=_fact(features, "dependent_launch", bool, sources),
        has_tensor_maps=_fact(features, "tensor_maps", bool, sources),
        has_fp8=_fact(features, "fp8", bool, sources),
        has_warp_group_mma=_fact(features, "warp_group_mma", bool, sources),
        peak_flops=_peaks(peaks, sources),
        sources=sources,
        choices=choices if lender is None else {**_borrowed(lender, target, folder), **choices},
    )
    for part in (facts, features, peaks):
        part.done()
    return profile


def _open(target: str, folder: Path) -> Table:
    known = known_targets(folder)
    if target not in known:
        raise ProfileError(
            f"unknown target '{target}'; known targets: {', '.join(known) or 'none'}. "
            f"A target is a file NAME.toml in {folder}."
        )
    return read_table(folder / f"{target}.toml")


def read_table(path: Path) -> Table:
    """A TOML file; raises ProfileError if it is too large or none."""
    size = path.stat().st_size
    if size > LARGEST_PROFILE_BYTES:
        raise ProfileError(f"{path}: {size} bytes, expected at most {LARGEST_PROFILE_BYTES}.")
    try:
        return Table(tomllib.loads(path.read_text("utf-8")), path.name)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: not a TOML file: {error}. Correct the file.") from error


def _fact(table: Table, key: str, kind: type[T], sources: dict[str, str]) -> T:
    entry = table.table(key)
    value = entry.take("value", kind)
    source = entry.take("source", str)
    entry.done()
    if not source.strip():
        raise ProfileError(f"{entry.where}.source: is empty; say where the value was taken from.")
    sources[key] = source
    return value


def _positive(table: Table, key: str, sources: dict[str, str]) -> int:
    value = _fact(table, key, int, sources)
    if value < 1:
        raise ProfileError(f"{table.where}.{key}.value: expected a positive integer, got {value}.")
    return value


def _peaks(table: Table, sources: dict[str, str]) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for key in table.remaining():
        if key not in PEAK_DTYPES:
            known = ", ".join(PEAK_DTYPES)
            raise ProfileError(f"{table.where}: unknown key {key}; known keys: {known}.")
        own: dict[str, str] = {}
        peaks[key] = _fact(table, key, float, own)
        sources[f"peak_flops.{key}"] = own[key]
    return peaks


def read_choices(table: Table) -> dict[str, Choice]:
    """Takes the `[[choice]]` tables, by problem; raises ProfileError."""
    choices: dict[str, Choice] = {}
    for index, item in enumerate(table.take_if_present("choice", list) or []):
        choice = _choice(Table(item, f"{table.where}.choice[{index}]"))
        if choice.problem in choices:
            raise ProfileError(
                f"{table.where}.choice[{index}]: the problem '{choice.problem}' was already given. "
                "Keep one of the two."
            )
        choices[choice.problem] = choice
    return choices


def _choice(table: Table) -> Choice:
    problem, how = table.take("problem", str), table.take("how", str)
    parameters = _parameters(table.table("parameters"))
    if how not in ("measured", "model"):
        raise ProfileError(f"{table.where}.how: unknown '{how}'; known: measured, model.")
    if how == "model":
        microseconds = table.take_if_present("microseconds", float)
        table.done()
        return Choice(
            problem=problem, parameters=parameters, how="model", microseconds=microseconds
        )
    choice = Choice(
        problem=problem,
        parameters=parameters,
        how=cast(How, how),
        microseconds=table.take("microseconds", float),
        spread=table.take("spread", float),
        date=table.take("date", datetime.date),
        driver=table.take("driver", str),
        clocks=table.take("clocks", str),
    )
    table.done()
    return choice


def _parameters(table: Table) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((key, table.take(key, int)) for key in table.remaining()))


def _borrowed(lender: str, target: str, folder: Path) -> Mapping[str, Choice]:
    """The choices that `lender` measured; on this device they are a model and have no time."""
    table = _open(lender, folder)
    if lender == target or "choices_from" in table.remaining():
        raise ProfileError(
            f"{target}.toml.choices_from: '{lender}' has no choices of its own. "
            "Name the profile that was measured."
        )
    choices = read_choices(table)
    return {problem: as_model(choice, lender) for problem, choice in choices.items()}


def as_model(choice: Choice, lender: str) -> Choice:
    """A choice of another device, `lender`: on this one it is a model and has no time."""
    return replace(
        choice,
        how="model",
        microseconds=None,
        spread=None,
        date=None,
        driver="",
        clocks="",
        measured_on=lender if choice.how == "measured" else "",
    )
