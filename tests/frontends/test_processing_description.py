"""Facts and options become a description that the runtime accepts, or one clear error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policyc.frontends.errors import FrontendError
from policyc.frontends.processing_description import (
    Feature,
    ProcessingFacts,
    ProcessingOptions,
    describe_processing,
)
from policyc.frontends.statistics import FeatureStatistics
from policyc.runtime_min.processing.schema import ProcessingDescription, parse_processing

NONE = ProcessingOptions()


def feature(name: str, width: int) -> Feature:
    low, high = np.linspace(-2.0, -1.0, width), np.linspace(1.0, 3.0, width)
    return Feature(
        name=name,
        width=width,
        model_width=32,
        scaling="quantile",
        epsilon=1e-6,
        statistics=FeatureStatistics(width=width, q01=low, q99=high),
    )


FACTS = ProcessingFacts(
    rule="openpi",
    slots=("front", "left", "right"),
    renames=(),
    missing="keep_slot",
    image_size=(56, 112),
    state=feature("state", 8),
    actions=feature("actions", 7),
    horizon=10,
    prompt_slots=64,
    state_in_prompt=True,
    delta_mask=None,
    action_names=(),
    tokenizer=Path("somewhere/paligemma.model"),
    notes=("a remark",),
)


def described(facts: ProcessingFacts, options: ProcessingOptions = NONE) -> ProcessingDescription:
    return parse_processing(describe_processing(facts, options)[0])


def test_facts_alone() -> None:
    parsed = described(FACTS)
    assert parsed.cameras.slots == parsed.cameras.names == FACTS.slots
    assert (parsed.cameras.height, parsed.cameras.width) == (56, 112)
    assert parsed.state.normalization.first == tuple(np.linspace(-2.0, -1.0, 8))
    assert parsed.state.normalization.second == tuple(np.linspace(1.0, 3.0, 8))
    assert parsed.actions.names[6] == "action_6" and parsed.notes == ("a remark",)


@pytest.mark.parametrize(
    ("file", "kind"), [("x.model", "sentencepiece"), ("a/tokenizer.json", "tokenizers")]
)
def test_tokenizer_file(file: str, kind: str) -> None:
    """The suffix says which library reads it; the bundle's file has a fixed name."""
    description, files = describe_processing(replace(FACTS, tokenizer=Path(file)), NONE)
    parsed = parse_processing(description)
    assert parsed.prompt.tokenizer_kind.value == kind
    assert files == {parsed.prompt.tokenizer_file: Path(file)}
    with pytest.raises(FrontendError, match=r"expected a tokenizer named \*.model or \*.json"):
        described(replace(FACTS, tokenizer=Path("tokenizer.bin")))


def test_float32_statistics_are_exact() -> None:
    """A float32 written as JSON comes back as the same float32."""
    vector = np.array([0.1, 1 / 3, 1e-9], np.float32)
    statistics = FeatureStatistics(width=3, q01=vector, q99=vector + np.float32(1))
    state = replace(FACTS.state, width=3, statistics=statistics)
    first = described(replace(FACTS, state=state)).state.normalization.first
    np.testing.assert_array_equal(np.array(first, np.float32), vector)


def test_statistics_are_cut_to_the_width() -> None:
    """Case 14: the padded tail of wider statistics is left out."""
    actions = replace(feature("actions", 32), width=7)
    parsed = described(replace(FACTS, actions=actions))
    assert parsed.actions.normalization.first == tuple(np.linspace(-2.0, -1.0, 32)[:7])


def test_missing_vector() -> None:
    """Case 12: a scaling without its statistics is refused."""
    state = replace(FACTS.state, scaling="mean_std")
    message = "statistics of state: 'mean' is missing, which mean_std normalisation reads"
    with pytest.raises(FrontendError, match=message):
        described(replace(FACTS, state=state))


def test_robot_wider_than_the_model() -> None:
    """Case 24: both widths are in the message."""
    with pytest.raises(FrontendError, match="state: the robot's width is 33, the model's 32"):
        described(replace(FACTS, state=feature("state", 33)))


@pytest.mark.parametrize("in_prompt", [True, False])
@pytest.mark.parametrize("mask", [None, (True,) + (False,) * 6])
def test_state_is_required_where_it_is_read(in_prompt: bool, mask: tuple[bool, ...] | None) -> None:
    """Case 73."""
    parsed = described(replace(FACTS, state_in_prompt=in_prompt, delta_mask=mask))
    assert parsed.state.required is (in_prompt or mask is not None)


def test_user_cameras_win_over_renames() -> None:
    """Case 19."""
    facts = replace(FACTS, renames=(("top", "front"), ("wrist", "left"), ("x", "elsewhere")))
    assert described(facts).cameras.names == ("top", "wrist", "right")
    options = ProcessingOptions(cameras=(("mine", "front"),))
    assert described(facts, options).cameras.names == ("mine", "wrist", "right")
    swapped = ProcessingOptions(cameras=(("left", "front"), ("front", "left")))
    assert described(FACTS, swapped).cameras.names == ("left", "front", "right")
    assert described(facts, ProcessingOptions(views=1)).cameras.names == ("top",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"views": 4}, "4 views asked for, but the checkpoint has 3 camera slots: front, left"),
        ({"cameras": (("top", "base"),)}, "no slot 'base'; the policy's slots: front, left, right"),
        ({"cameras": (("a", "front"), ("b", "front"))}, "a name or a slot is used twice"),
        ({"cameras": (("a", "front"), ("a", "left"))}, "a name or a slot is used twice"),
        ({"cameras": (("left", "front"),)}, "a name or a slot is used twice"),
        ({"action_names": ("a", "b")}, "expected 7 distinct action names"),
        ({"action_names": ("a",) * 7}, "expected 7 distinct action names"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    """Case 19, case 20, case 83: the user's mistakes are found at compile time."""
    with pytest.raises(FrontendError, match=message):
        described(FACTS, ProcessingOptions(**options))


@pytest.mark.parametrize("mask", [(True,) * 8, (True,) * 6, ()])
def test_delta_mask_of_other_length(mask: tuple[bool, ...]) -> None:
    with pytest.raises(FrontendError, match="expected 7 entries for 7 action columns"):
        described(replace(FACTS, delta_mask=mask))


def test_delta_mask_beyond_the_state() -> None:
    """Case 62: there is no state to add."""
    facts = replace(FACTS, state=feature("state", 4), delta_mask=(True,) * 5 + (False,) * 2)
    with pytest.raises(FrontendError, match="true only among the 4 of the state"):
        described(facts)
