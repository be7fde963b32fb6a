"""Builds the value of `processing.json` from what a checkpoint says and what the user decided.

The form is defined by the runtime's schema; a test there and here keeps the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from policyc.frontends.errors import FrontendError
from policyc.frontends.statistics import FeatureStatistics

FORMAT = 1
"""Version of the description, as the runtime's schema numbers it."""

BOS_ID = 2
"""Of PaliGemma's tokenizer; the runtime compares it with the tokenizer file."""

_KIND_OF_SUFFIX = {".model": "sentencepiece", ".json": "tokenizers"}
_VECTORS = {
    "quantile": ("q01", "q99"),
    "mean_std": ("mean", "std"),
    "min_max": ("min", "max"),
    "identity": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessingOptions:
    """What the user may decide; None and empty mean: as the checkpoint or its code base says.

    Attributes:
        views: number of camera slots, the first ones of the checkpoint's.
        image_size: (height, width) that the vision tower reads.
        prompt_slots, horizon: sizes of the compiled policy.
        state_in_prompt: openpi only: pi05_libero-style checkpoints do not write it.
        delta_mask: openpi only: columns that are relative to the state; absolute beyond its length.
        state_width, action_width: openpi only, where the statistics are wider than the robot.
        cameras: (robot's name, slot) pairs; other slots keep their name.
        default_prompt: instruction of observations that bring none.
        tokenizer: tokenizer file, `.model` or `.json`.
        action_names: names of the action columns.
        raw: no normalisation at all, on purpose.
    """

    views: int | None = None
    image_size: tuple[int, int] | None = None
    prompt_slots: int | None = None
    horizon: int | None = None
    state_in_prompt: bool | None = None
    delta_mask: tuple[bool, ...] | None = None
    state_width: int | None = None
    action_width: int | None = None
    cameras: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None
    tokenizer: Path | None = None
    action_names: tuple[str, ...] = ()
    raw: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """State or actions: widths, and how they are normalised; identity needs no statistics."""

    name: str
    width: int
    model_width: int
    scaling: str
    epsilon: float
    statistics: FeatureStatistics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessingFacts:
    """What a checkpoint's files and its code base say, in the words of the runtime's schema.

    Attributes:
        rule: whose arithmetic, `openpi` or `lerobot`.
        missing: where the filler of an absent camera goes.
        renames: (robot's camera name, slot) pairs of the checkpoint.
        tokenizer: the file to copy.
    """

    rule: str
    slots: tuple[str, ...]
    renames: tuple[tuple[str, str], ...]
    missing: str
    image_size: tuple[int, int]
    state: Feature
    actions: Feature
    horizon: int
    prompt_slots: int
    state_in_prompt: bool
    delta_mask: tuple[bool, ...] | None
    action_names: tuple[str, ...]
    tokenizer: Path
    notes: tuple[str, ...]


def describe_processing(
    facts: ProcessingFacts, options: ProcessingOptions
) -> tuple[dict[str, object], dict[str, Path]]:
    """The JSON value of `processing.json`, and the files to copy: name in the bundle -> source.

    Raises:
        FrontendError: widths, names, masks or options that do not fit each other.
    """
    kind = _KIND_OF_SUFFIX.get(facts.tokenizer.suffix)
    if kind is None:
        raise FrontendError(f"{facts.tokenizer}: expected a tokenizer named *.model or *.json.")
    file = f"tokenizer{facts.tokenizer.suffix}"
    prompt = {
        "format": "state" if facts.state_in_prompt else "plain",
        "cleaning": "strip",
        "slots": options.prompt_slots or facts.prompt_slots,
        "tokenizer": {"kind": kind, "file": file},
        "bos_id": BOS_ID,
        "default": options.default_prompt,
    }
    description: dict[str, object] = {
        "format": FORMAT,
        "cameras": _cameras(facts, options),
        "state": _state(facts),
        "prompt": prompt,
        "actions": _actions(facts, options),
        "notes": list(facts.notes),
    }
    return description, {file: facts.tokenizer}


def _cameras(facts: ProcessingFacts, options: ProcessingOptions) -> dict[str, object]:
    views = options.views or len(facts.slots)
    if views > len(facts.slots):
        raise FrontendError(
            f"{views} views asked for, but the checkpoint has {len(facts.slots)} camera slots: "
            f"{', '.join(facts.slots)}."
        )
    slots = facts.slots[:views]
    return {
        "slots": list(slots),
        "height": facts.image_size[0],
        "width": facts.image_size[1],
        "resize": facts.rule,
        "missing": facts.missing,
        "camera_map": _camera_map(facts, options, slots),
    }


def _camera_map(
    facts: ProcessingFacts, options: ProcessingOptions, slots: tuple[str, ...]
) -> dict[str, str]:
    """Robot's name -> slot; the user's pairs win over the checkpoint's renames of the same slot."""
    for name, slot in options.cameras:
        if slot not in slots:
            raise FrontendError(
                f"camera {name}={slot}: no slot '{slot}'; the policy's slots: {', '.join(slots)}."
            )
    chosen = [slot for _, slot in options.cameras]
    kept = [(name, slot) for name, slot in facts.renames if slot in slots and slot not in chosen]
    pairs = [*kept, *options.cameras]
    free = [slot for slot in slots if slot not in {target for _, target in pairs}]
    names = [*(name for name, _ in pairs), *free]
    if len(set(names)) != len(names) or len(pairs) + len(free) != len(slots):
        listed = ", ".join(f"{name}={slot}" for name, slot in pairs)
        raise FrontendError(
            f"camera map {listed}: a name or a slot is used twice; slots without a map keep "
            f"their own name ({', '.join(free) or 'none'})."
        )
    return dict(pairs)


def _state(facts: ProcessingFacts) -> dict[str, object]:
    state = facts.state
    _check_widths(state)
    return {
        "width": state.width,
        "model_width": state.model_width,
        "required": facts.state_in_prompt or facts.delta_mask is not None,
        "normalization": _normalization(state, facts.rule),
    }


def _actions(facts: ProcessingFacts, options: ProcessingOptions) -> dict[str, object]:
    actions, mask = facts.actions, facts.delta_mask
    _check_widths(actions)
    if mask is not None and (len(mask) != actions.width or any(mask[facts.state.width :])):
        raise FrontendError(
            f"delta mask {list(mask)}: expected {actions.width} entries for {actions.width} "
            f"action columns, true only among the {facts.state.width} of the state."
        )
    names = (options.action_names or facts.action_names)[: actions.width]
    names = names or tuple(f"action_{index}" for index in range(actions.width))
    if len(set(names)) != actions.width:
        raise FrontendError(f"expected {actions.width} distinct action names, got {list(names)}.")
    return {
        "horizon": options.horizon or facts.horizon,
        "model_width": actions.model_width,
        "width": actions.width,
        "normalization": _normalization(actions, facts.rule),
        "delta_mask": None if mask is None else list(mask),
        "names": list(names),
    }


def _check_widths(feature: Feature) -> None:
    if not 1 <= feature.width <= feature.model_width:
        raise FrontendError(
            f"{feature.name}: the robot's width is {feature.width}, the model's "
            f"{feature.model_width}; the robot's must be 1 to {feature.model_width}."
        )


def _normalization(feature: Feature, rule: str) -> dict[str, object]:
    return {
        "kind": feature.scaling,
        "rule": rule,
        "epsilon": feature.epsilon,
        "statistics": _vectors(feature),
    }


def _vectors(feature: Feature) -> dict[str, list[float]]:
    """The vectors that the scaling reads, cut to the robot's width; all exact in JSON."""
    result: dict[str, list[float]] = {}
    for name in _VECTORS[feature.scaling]:
        vector = getattr(feature.statistics, name)
        if vector is None:
            raise FrontendError(
                f"statistics of {feature.name}: '{name}' is missing, which {feature.scaling} "
                "normalisation reads. Recompute the statistics."
            )
        result[name] = [float(value) for value in vector[: feature.width]]
    return result
