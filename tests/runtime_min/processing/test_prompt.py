"""Token ids against the official tokenizer classes; limits and hostile text."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policyc.runtime_min.errors import BundleError, ObservationError
from policyc.runtime_min.processing.prompt import PromptEncoder, state_codes
from policyc.runtime_min.processing.schema import Cleaning, Prompt, PromptFormat, TokenizerKind
from tests.runtime_min.processing.conftest import Load

SENTENCEPIECE = Prompt(
    format=PromptFormat.STATE,
    cleaning=Cleaning.STRIP,
    slots=200,
    tokenizer_kind=TokenizerKind.SENTENCEPIECE,
    tokenizer_file="tokenizer.model",
    bos_id=2,
    default=None,
)
TOKENIZERS = replace(
    SENTENCEPIECE, tokenizer_kind=TokenizerKind.TOKENIZERS, tokenizer_file="tokenizer.json"
)
FORMATS = {"pi0": PromptFormat.PLAIN, "pi05": PromptFormat.STATE}


def recorded(oracles: Path) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """All cases of the token oracle, and its normalised states."""
    content = json.loads((oracles / "tokenizer" / "tokens.json").read_text())
    states = {
        name: np.array(state["values"], state["dtype"]) for name, state in content["states"].items()
    }
    return content["cases"], {**states, "none": np.zeros(0)}


def check(encoder: PromptEncoder, ids: list[int], case: dict[str, Any], state: np.ndarray) -> None:
    """Equal tokens and mask; where the oracle cut the ids, a refusal with the same beginning."""
    encoder = replace(encoder, description=replace(encoder.description, slots=case["max_len"]))
    found = encoder.ids(case["prompt"], state)
    assert found[: case["max_len"]] == ids
    if len(found) > case["max_len"]:
        with pytest.raises(ObservationError, match=f"{len(found)} tokens.*{case['max_len']} slots"):
            encoder.tokens(case["prompt"], state)
        return
    tokens, mask = encoder.tokens(case["prompt"], state)
    assert tokens.tolist() == ids + [0] * (case["max_len"] - len(ids))
    assert mask.tolist() == [True] * len(ids) + [False] * (case["max_len"] - len(ids))


@pytest.mark.parametrize("file", ["tokenizer.model", "tokenizer_unigram.model"])
def test_openpi_ids(file: str, oracles: Path) -> None:
    """Case 22, case 75: all recorded prompts, empty and non-Latin ones included."""
    all_cases, states = recorded(oracles)
    cases = [case for case in all_cases if case["model"] == file]
    description = replace(SENTENCEPIECE, tokenizer_file=file)
    encoder = PromptEncoder.load(description, oracles / "tokenizer")
    assert len(cases) > 40
    for case in cases:
        form = replace(description, format=FORMATS[case["format"]])
        state = states[case.get("state", "none")]
        check(replace(encoder, description=form), case["ids"], case, state)


def test_lerobot_ids(oracles: Path) -> None:
    """Case 75: by `tokenizers`; LeRobot's pi0 prompt gets a newline and is not cleaned."""
    all_cases, states = recorded(oracles)
    cases = [case for case in all_cases if case["model"] == "tokenizer.model"]
    encoder = PromptEncoder.load(TOKENIZERS, oracles / "pi05_lerobot" / "lerobot" / "tokenizer")
    line = replace(TOKENIZERS, format=PromptFormat.LINE, cleaning=Cleaning.NONE)
    for case in cases:
        form = line if case["format"] == "pi0" else TOKENIZERS
        ids = case.get("lerobot_ids", case["ids"])
        state = states[case.get("state", "none")]
        check(replace(encoder, description=form), ids, case, state)


@pytest.mark.parametrize(
    "prompt",
    [
        "拿起红色的杯子",
        "التقط الكوب الأحمر",
        "apăsați butonul roșu café",
        "pick 🤖👍🏽 up",
        "zero\u200bwidth\u200dspace",
        "pick up the cup " * 625,
    ],
)
def test_both_libraries_agree(prompt: str, oracles: Path) -> None:
    """Case 75: Chinese, Arabic, accents, emoji, zero-width space, 10000 characters."""
    state = np.array([0.1, -0.4])
    first = PromptEncoder.load(SENTENCEPIECE, oracles / "tokenizer")
    second = PromptEncoder.load(TOKENIZERS, oracles / "pi05_lerobot" / "lerobot" / "tokenizer")
    ids = first.ids(prompt, state)
    assert ids == second.ids(prompt, state)
    assert ids[0] == 2 and len(ids) > 20


def test_state_codes() -> None:
    state = np.array([-1.5, -1.0, -0.9921875, 0.0, 0.5, 0.9921875, 1.0, 3000.0])
    assert state_codes(state) == "-1 0 1 128 192 255 255 255"
    assert state_codes(np.nextafter(state[2:3], -2)) == "0"


def test_limit_is_exact_and_nothing_is_cut(oracles: Path) -> None:
    """Case 21: limit - 1 and limit pass whole; limit + 1 and 4 x limit are refused."""
    encoder = PromptEncoder.load(SENTENCEPIECE, oracles / "tokenizer")
    state = np.zeros(8)
    ids = encoder.ids("pick up the cup", state)
    marker = encoder.encode("Action: ")
    for slots in (len(ids) + 1, len(ids)):
        exact = replace(encoder, description=replace(SENTENCEPIECE, slots=slots))
        tokens, mask = exact.tokens("pick up the cup", state)
        assert tokens[mask].tolist() == ids
        assert ids[-2:] == marker[-2:]
    for slots in (len(ids) - 1, len(ids) // 4):
        short = replace(encoder, description=replace(SENTENCEPIECE, slots=slots))
        message = f"{len(ids)} tokens.*{slots} slots.*at least {len(ids) - slots} tokens"
        with pytest.raises(ObservationError, match=message):
            short.tokens("pick up the cup", state)


@pytest.mark.parametrize("prompt", ["", "   ", "\n"])
def test_blank_prompts_equal_the_empty_one(prompt: str, oracles: Path) -> None:
    """Case 22: blanks are stripped, as in the reference."""
    encoder = PromptEncoder.load(SENTENCEPIECE, oracles / "tokenizer")
    state = np.zeros(2)
    assert encoder.ids(prompt, state) == [2, *encoder.encode("Task: , State: 128 128;\nAction: ")]


def test_invalid_unicode(oracles: Path) -> None:
    """Case 75: bytes that are no UTF-8 arrive as lone surrogates and are refused cleanly."""
    encoder = PromptEncoder.load(SENTENCEPIECE, oracles / "tokenizer")
    prompt = b"pick \xff up".decode("utf-8", "surrogateescape")
    with pytest.raises(ObservationError, match="not valid Unicode at character 5"):
        encoder.tokens(prompt, np.zeros(2))


def test_other_bos(oracles: Path) -> None:
    with pytest.raises(BundleError, match=r"starts with ids \[2\], expected \[1\] \(bos\)"):
        PromptEncoder.load(replace(SENTENCEPIECE, bos_id=1), oracles / "tokenizer")
    with pytest.raises(BundleError, match=r"starts with ids \[2\], expected \[1\] \(bos\)"):
        PromptEncoder.load(
            replace(TOKENIZERS, bos_id=1), oracles / "pi05_lerobot" / "lerobot" / "tokenizer"
        )


@pytest.mark.parametrize(
    ("description", "content", "message"),
    [
        (SENTENCEPIECE, b"not a model", "not a sentencepiece model"),
        (TOKENIZERS, b"{", "not valid JSON"),
        (TOKENIZERS, b"{}", "keys 'version' and 'model' are missing"),
    ],
)
def test_damaged_tokenizer(
    description: Prompt, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / description.tokenizer_file).write_bytes(content)
    with pytest.raises(BundleError, match=message):
        PromptEncoder.load(description, tmp_path)


def test_missing_tokenizers_wheel(monkeypatch: pytest.MonkeyPatch, oracles: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BundleError, match=r"pip install 'policyc\[tokenizers\]'"):
        PromptEncoder.load(TOKENIZERS, oracles / "pi05_lerobot" / "lerobot" / "tokenizer")


def test_missing_or_linked_tokenizer(tmp_path: Path, oracles: Path) -> None:
    """Case 18: the tokenizer lies in the bundle; a link out of it is refused."""
    with pytest.raises(BundleError, match="missing, or it is a link"):
        PromptEncoder.load(SENTENCEPIECE, tmp_path)
    (tmp_path / "tokenizer.model").symlink_to(oracles / "tokenizer" / "tokenizer.model")
    with pytest.raises(BundleError, match="missing, or it is a link"):
        PromptEncoder.load(SENTENCEPIECE, tmp_path)


def test_default_prompt(
    load: Load, description: dict[str, Any], tokenizer: Path, observation: dict[str, Any]
) -> None:
    """Case 22: None and a missing key take the default of the bundle, if it has one."""
    expected = load(description, tokenizer).prepare(observation)["tokens"]
    description["prompt"]["default"] = observation.pop("prompt")
    processing = load(description, tokenizer)
    np.testing.assert_array_equal(processing.prepare(observation)["tokens"], expected)
    observation["prompt"] = None
    np.testing.assert_array_equal(processing.prepare(observation)["tokens"], expected)
    observation["prompt"] = ""
    assert (processing.prepare(observation)["tokens"] != expected).any()
