"""The form of `processing.json`: what happens between an observation and the network's tensors.

`parse_processing` is the only reader; every key is known and every value is checked against the
others, so that the interpreter can trust a `ProcessingDescription`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from policyc.runtime_min.errors import BundleError, BundleVersionError
from policyc.runtime_min.fields import Fields, as_text, describe

FORMAT = 1
"""The version of `processing.json` that this runtime reads."""

MAXIMUM_WIDTH = 4096
MAXIMUM_IMAGE_SIDE = 4096
MAXIMUM_CAMERAS = 64
MAXIMUM_PROMPT_SLOTS = 65536
MAXIMUM_TOKEN_ID = 2**31 - 1

_Choice = TypeVar("_Choice", bound=Enum)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Rule(Enum):
    """Whose arithmetic is followed where the two public code bases differ."""

    OPENPI = "openpi"
    LEROBOT = "lerobot"


class MissingCamera(Enum):
    """Where the filler of an absent camera goes; it is -1.0 everywhere and its mask is false."""

    KEEP_SLOT = "keep_slot"
    MOVE_LAST = "move_last"


class Scaling(Enum):
    """Which statistics normalise a vector."""

    QUANTILE = "quantile"
    MEAN_STD = "mean_std"
    MIN_MAX = "min_max"
    IDENTITY = "identity"


STATISTICS = {
    Scaling.QUANTILE: ("q01", "q99"),
    Scaling.MEAN_STD: ("mean", "std"),
    Scaling.MIN_MAX: ("min", "max"),
    Scaling.IDENTITY: (),
}
"""The two vectors that each scaling reads: (low, high) or (centre, spread)."""


class PromptFormat(Enum):
    """STATE: `Task: <text>, State: <codes>;` newline `Action: `, encoded as one string.

    PLAIN: the text, then a newline encoded on its own. LINE: the text, closed by a newline unless
    it ends with one, encoded as one string.
    """

    STATE = "state"
    PLAIN = "plain"
    LINE = "line"


class Cleaning(Enum):
    """STRIP: outer white space removed, then `_` and newline become blanks. NONE: as given."""

    STRIP = "strip"
    NONE = "none"


class TokenizerKind(Enum):
    """The library that reads the tokenizer file."""

    SENTENCEPIECE = "sentencepiece"
    TOKENIZERS = "tokenizers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cameras:
    """Slots in the network's order; `names[i]` is what the robot calls slot i."""

    slots: tuple[str, ...]
    names: tuple[str, ...]
    height: int
    width: int
    resize: Rule
    missing: MissingCamera


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """Scaling with its two statistics vectors (empty for identity) and the epsilon of its rule."""

    scaling: Scaling
    rule: Rule
    epsilon: float
    first: tuple[float, ...]
    second: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The robot's state: `width` real entries, zero-padded to `model_width` after normalisation."""

    width: int
    model_width: int
    required: bool
    normalization: Normalization


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """How an instruction becomes `slots` token ids; `default` replaces a missing instruction."""

    format: PromptFormat
    cleaning: Cleaning
    slots: int
    tokenizer_kind: TokenizerKind
    tokenizer_file: str
    bos_id: int
    default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """The chunk: the first `width` of `model_width` columns are the robot's, in the order of
    `names`.

    Columns where `delta_mask` is true are relative to the state of the observation; without a mask
    none is.
    """

    horizon: int
    model_width: int
    width: int
    normalization: Normalization
    delta_mask: tuple[bool, ...] | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessingDescription:
    """All of `processing.json`. `notes` are the compiler's remarks about the checkpoint."""

    cameras: Cameras
    state: State
    prompt: Prompt
    actions: Actions
    notes: tuple[str, ...]


def parse_processing(value: object, where: str = "processing.json") -> ProcessingDescription:
    """Read a description from its JSON value.

    Raises:
        BundleVersionError: the format version is not `FORMAT`.
        BundleError: a key is missing or unknown, or a value has the wrong type, range or width.
    """
    fields = Fields(value, where)
    version = fields.integer("format", 0, MAXIMUM_TOKEN_ID)
    if version != FORMAT:
        side = "runtime" if version > FORMAT else "bundle (compile the checkpoint again)"
        raise BundleVersionError(
            f"{where}: format {version}; this runtime reads format {FORMAT}. Upgrade the {side}."
        )
    description = ProcessingDescription(
        cameras=_cameras(Fields(fields.value("cameras"), f"{where}: cameras")),
        state=_state(Fields(fields.value("state"), f"{where}: state")),
        prompt=_prompt(Fields(fields.value("prompt"), f"{where}: prompt")),
        actions=_actions(Fields(fields.value("actions"), f"{where}: actions")),
        notes=_texts(fields, "notes"),
    )
    fields.done()
    _check_state_use(description, where)
    return description


def _cameras(fields: Fields) -> Cameras:
    slots = _texts(fields, "slots")
    if not 1 <= len(slots) <= MAXIMUM_CAMERAS or len(set(slots)) != len(slots):
        raise BundleError(
            f"{fields.where}.slots: expected 1 to {MAXIMUM_CAMERAS} distinct names, "
            f"got {list(slots)}."
        )
    cameras = Cameras(
        slots=slots,
        names=_robot_names(fields, slots),
        height=fields.integer("height", 1, MAXIMUM_IMAGE_SIDE),
        width=fields.integer("width", 1, MAXIMUM_IMAGE_SIDE),
        resize=_choice(fields, "resize", Rule),
        missing=_choice(fields, "missing", MissingCamera),
    )
    fields.done()
    return cameras


def _robot_names(fields: Fields, slots: tuple[str, ...]) -> tuple[str, ...]:
    """What the robot calls each slot: the name that the map sends there, or the slot's own."""
    place = f"{fields.where}.camera_map"
    name_of: dict[str, str] = {}
    for name, slot in fields.mapping("camera_map").items():
        target = as_text(slot, f"{place}.{name}")
        if target not in slots:
            raise BundleError(f"{place}.{name}: no slot '{target}'; slots: {', '.join(slots)}.")
        if target in name_of:
            raise BundleError(
                f"{place}: '{name_of[target]}' and '{name}' both fill slot '{target}'."
            )
        name_of[target] = name
    names = tuple(name_of.get(slot, slot) for slot in slots)
    if len(set(names)) != len(names):
        raise BundleError(
            f"{place}: a mapped name is also the name of another slot: {list(names)}."
        )
    return names


def _state(fields: Fields) -> State:
    width = fields.integer("width", 1, MAXIMUM_WIDTH)
    state = State(
        width=width,
        model_width=fields.integer("model_width", width, MAXIMUM_WIDTH),
        required=fields.boolean("required"),
        normalization=_normalization(fields, width),
    )
    fields.done()
    return state


def _prompt(fields: Fields) -> Prompt:
    tokenizer = Fields(fields.value("tokenizer"), f"{fields.where}.tokenizer")
    default = fields.value("default")
    prompt = Prompt(
        format=_choice(fields, "format", PromptFormat),
        cleaning=_choice(fields, "cleaning", Cleaning),
        slots=fields.integer("slots", 1, MAXIMUM_PROMPT_SLOTS),
        tokenizer_kind=_choice(tokenizer, "kind", TokenizerKind),
        tokenizer_file=_file_name(tokenizer, "file"),
        bos_id=fields.integer("bos_id", 0, MAXIMUM_TOKEN_ID),
        default=None if default is None else as_text(default, f"{fields.where}.default"),
    )
    tokenizer.done()
    fields.done()
    return prompt


def _actions(fields: Fields) -> Actions:
    width = fields.integer("width", 1, MAXIMUM_WIDTH)
    names = _texts(fields, "names")
    if len(names) != width or len(set(names)) != width:
        raise BundleError(
            f"{fields.where}.names: expected {width} distinct names, got {list(names)}."
        )
    actions = Actions(
        horizon=fields.integer("horizon", 1, MAXIMUM_WIDTH),
        model_width=fields.integer("model_width", width, MAXIMUM_WIDTH),
        width=width,
        normalization=_normalization(fields, width),
        delta_mask=_delta_mask(fields, width),
        names=names,
    )
    fields.done()
    return actions


def _delta_mask(fields: Fields, width: int) -> tuple[bool, ...] | None:
    if fields.value("delta_mask") is None:
        return None
    mask = tuple(item for item in fields.items("delta_mask") if isinstance(item, bool))
    if len(mask) != len(fields.items("delta_mask")) or len(mask) != width:
        raise BundleError(f"{fields.where}.delta_mask: expected {width} booleans or null.")
    return mask


def _normalization(parent: Fields, width: int) -> Normalization:
    fields = Fields(parent.value("normalization"), f"{parent.where}.normalization")
    scaling = _choice(fields, "kind", Scaling)
    rule = _choice(fields, "rule", Rule)
    if rule is Rule.OPENPI and scaling is Scaling.MIN_MAX:
        raise BundleError(f"{fields.where}: openpi has no min_max normalisation.")
    epsilon = fields.number("epsilon")
    if not 0.0 <= epsilon < 1.0:
        raise BundleError(f"{fields.where}.epsilon: expected 0 to 1, got {epsilon}.")
    statistics = Fields(fields.value("statistics"), f"{fields.where}.statistics")
    vectors = [_vector(statistics, key, width) for key in STATISTICS[scaling]] or [(), ()]
    statistics.done()
    fields.done()
    return Normalization(
        scaling=scaling, rule=rule, epsilon=epsilon, first=vectors[0], second=vectors[1]
    )


def _vector(fields: Fields, key: str, width: int) -> tuple[float, ...]:
    items = fields.items(key)
    if len(items) != width:
        raise BundleError(f"{fields.where}.{key}: expected {width} numbers, got {len(items)}.")
    for index, item in enumerate(items):
        if isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(item):
            raise BundleError(
                f"{fields.where}.{key}[{index}]: expected a finite number, got {describe(item)}."
            )
    return tuple(float(item) for item in items if isinstance(item, int | float))


def _check_state_use(description: ProcessingDescription, where: str) -> None:
    """A state that the prompt or the delta mask reads is required and wide enough."""
    state, mask = description.state, description.actions.delta_mask
    in_prompt = description.prompt.format is PromptFormat.STATE
    if not state.required and (in_prompt or mask is not None):
        raise BundleError(
            f"{where}: state.required is false, but prompt or delta mask read the state."
        )
    if mask is not None and any(mask[state.width :]):
        raise BundleError(
            f"{where}: actions.delta_mask is true beyond the {state.width} entries of the state."
        )


def _choice(fields: Fields, key: str, choices: type[_Choice]) -> _Choice:
    text = fields.text(key)
    for choice in choices:
        if choice.value == text:
            return choice
    known = ", ".join(str(choice.value) for choice in choices)
    raise BundleError(f"{fields.where}.{key}: unknown '{text}'; known: {known}.")


def _texts(fields: Fields, key: str) -> tuple[str, ...]:
    return tuple(
        as_text(item, f"{fields.where}.{key}[{index}]")
        for index, item in enumerate(fields.items(key))
    )


def _file_name(fields: Fields, key: str) -> str:
    """A plain file name: it cannot leave the bundle's folder."""
    name = fields.text(key)
    if not _FILE_NAME.fullmatch(name):
        raise BundleError(
            f"{fields.where}.{key}: expected a plain file name inside the bundle, got '{name}'."
        )
    return name
