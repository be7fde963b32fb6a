"""The parser of `processing.json` accepts what it describes and refuses everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from policyc.runtime_min.errors import BundleError, BundleVersionError
from policyc.runtime_min.processing.schema import (
    MissingCamera,
    PromptFormat,
    Rule,
    Scaling,
    parse_processing,
)

Description = dict[str, Any]


def test_reads_every_field(description: Description) -> None:
    description["cameras"]["camera_map"] = {"top": "base_0_rgb"}
    description["actions"]["delta_mask"] = [True] * 6 + [False]
    description["notes"] = ["a remark"]
    parsed = parse_processing(description)
    assert parsed.cameras.slots[0] == "base_0_rgb"
    assert parsed.cameras.names == ("top", "left_wrist_0_rgb", "right_wrist_0_rgb")
    assert (parsed.cameras.resize, parsed.cameras.missing) == (Rule.OPENPI, MissingCamera.KEEP_SLOT)
    assert parsed.state.normalization.scaling is Scaling.QUANTILE
    statistics = description["state"]["normalization"]["statistics"]
    assert parsed.state.normalization.first == tuple(statistics["q01"])
    assert parsed.state.normalization.second == tuple(statistics["q99"])
    assert parsed.prompt.format is PromptFormat.STATE
    assert parsed.actions.delta_mask == (True,) * 6 + (False,)
    assert parsed.notes == ("a remark",)


def test_identity_has_no_statistics(description: Description) -> None:
    description["actions"]["normalization"] |= {"kind": "identity", "statistics": {}}
    assert parse_processing(description).actions.normalization.first == ()


@pytest.mark.parametrize(("version", "side"), [(2, "runtime"), (0, "bundle")])
def test_other_versions(version: int, side: str, description: Description) -> None:
    description["format"] = version
    with pytest.raises(BundleVersionError, match=f"format {version}.*format 1. Upgrade the {side}"):
        parse_processing(description)


@pytest.mark.parametrize("path", ["", "cameras", "state", "prompt", "prompt.tokenizer", "actions"])
def test_unknown_and_missing_keys(path: str, description: Description) -> None:
    section = description
    for key in filter(None, path.split(".")):
        section = section[key]
    section["surprise"] = 1
    with pytest.raises(BundleError, match="unknown keys surprise; known: "):
        parse_processing(description)
    del section["surprise"]
    removed = sorted(section)[0]
    del section[removed]
    with pytest.raises(BundleError, match=f"key '{removed}' is missing"):
        parse_processing(description)


def at(*path: str) -> Callable[[Description, Any], None]:
    def assign(description: Description, value: Any) -> None:
        for key in path[:-1]:
            description = description[key]
        description[path[-1]] = value

    return assign


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (at("cameras", "slots"), [], "1 to 64 distinct names"),
        (at("cameras", "slots"), ["a", "a"], "1 to 64 distinct names"),
        (at("cameras", "height"), 0, "expected 1 to 4096, got 0"),
        (at("cameras", "resize"), "bicubic", "unknown 'bicubic'; known: openpi, lerobot"),
        (at("cameras", "camera_map"), {"top": "base"}, "no slot 'base'; slots: base_0_rgb"),
        (
            at("cameras", "camera_map"),
            {"a": "base_0_rgb", "b": "base_0_rgb"},
            "'a' and 'b' both fill slot 'base_0_rgb'",
        ),
        (
            at("cameras", "camera_map"),
            {"left_wrist_0_rgb": "base_0_rgb"},
            "also the name of another slot",
        ),
        (at("state", "width"), 33, "model_width: expected 33 to 4096, got 32"),
        (at("state", "width"), True, "expected an integer"),
        (at("state", "required"), False, "prompt or delta mask read the state"),
        (at("state", "normalization", "epsilon"), 2.0, "expected 0 to 1"),
        (at("state", "normalization", "kind"), "min_max", "openpi has no min_max"),
        (at("prompt", "format"), "chat", "unknown 'chat'; known: state, plain, line"),
        (at("prompt", "slots"), 0, "expected 1 to 65536"),
        (at("prompt", "default"), 3, "expected a string"),
        (at("prompt", "tokenizer", "file"), "../tokenizer.model", "plain file name"),
        (at("prompt", "tokenizer", "file"), "/etc/passwd", "plain file name"),
        (at("actions", "names"), ["a"], "expected 7 distinct names"),
        (at("actions", "delta_mask"), [True], "expected 7 booleans or null"),
        (at("actions", "delta_mask"), [1] * 7, "expected 7 booleans or null"),
        (at("notes"), [3], "expected a string"),
    ],
)
def test_refuses(
    place: Callable[[Description, Any], None], value: Any, message: str, description: Description
) -> None:
    place(description, value)
    with pytest.raises(BundleError, match=message):
        parse_processing(description)


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        ([0.0] * 7, "q01: expected 8 numbers, got 7"),
        ([0.0] * 32, "q01: expected 8 numbers, got 32"),
        ([0.0] * 7 + [[1.0]], r"q01\[7\]: expected a finite number, got list"),
        ([0.0] * 7 + [float("inf")], r"q01\[7\]: expected a finite number"),
        ([0.0] * 7 + [True], r"q01\[7\]: expected a finite number, got bool"),
    ],
)
def test_statistics_widths(vector: list[Any], message: str, description: Description) -> None:
    """Case 14: one number per dimension, nothing ragged."""
    description["state"]["normalization"]["statistics"]["q01"] = vector
    with pytest.raises(BundleError, match=message):
        parse_processing(description)


def test_delta_mask_beyond_the_state(description: Description) -> None:
    state = description["state"]
    state["width"] = 4
    vectors = state["normalization"]["statistics"]
    state["normalization"]["statistics"] = {key: value[:4] for key, value in vectors.items()}
    description["actions"]["delta_mask"] = [True] * 4 + [False] * 3
    assert parse_processing(description).state.width == 4
    description["actions"]["delta_mask"] = [True] * 5 + [False] * 2
    with pytest.raises(BundleError, match="true beyond the 4 entries of the state"):
        parse_processing(description)
