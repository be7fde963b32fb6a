"""The processor files of a LeRobot policy folder, read strictly.

`policy_preprocessor.json` and `policy_postprocessor.json` list steps with their settings. Each step
that is not known here would change inference, so it stops the compile, as does an unknown setting.

Source: huggingface/lerobot `processor/`, `policies/pi05/processor_pi05.py` at 7427f31.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from policyc.frontends.checkpoint import read_json_object
from policyc.frontends.errors import FrontendError

PREPROCESSOR_FILE = "policy_preprocessor.json"
POSTPROCESSOR_FILE = "policy_postprocessor.json"
DEFAULT_EPSILON = 1e-8

RENAME = "rename_observations_processor"
RELATIVE = "relative_actions_processor"
ABSOLUTE = "absolute_actions_processor"
NORMALIZER = "normalizer_processor"
UNNORMALIZER = "unnormalizer_processor"
PREPARE_STATE = "pi05_prepare_state_tokenizer_processor_step"
TOKENIZER = "tokenizer_processor"
DEVICE = "device_processor"

_NORMALIZER_SETTINGS = ("eps", "features", "norm_map", "normalize_observation_keys")
_PREPROCESSOR_STEPS = {
    RENAME: ("rename_map",),
    "to_batch_processor": (),
    RELATIVE: ("enabled", "exclude_joints", "action_names"),
    NORMALIZER: _NORMALIZER_SETTINGS,
    PREPARE_STATE: ("max_state_dim", "task_key", "include_state_in_prompt"),
    TOKENIZER: (
        "max_length",
        "task_key",
        "padding_side",
        "padding",
        "truncation",
        "tokenizer_name",
    ),
    DEVICE: ("device", "float_dtype"),
}
"""Known steps in the order in which they must run, with the settings that each may have."""
_POSTPROCESSOR_STEPS = {
    UNNORMALIZER: _NORMALIZER_SETTINGS,
    ABSOLUTE: ("enabled",),
    DEVICE: ("device", "float_dtype"),
}

_HARMLESS_VALUES: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    (PREPARE_STATE, "include_state_in_prompt", (True,)),
    (TOKENIZER, "padding_side", ("right",)),
    (DEVICE, "float_dtype", (None, "float32")),
)
"""Settings of which only these values leave inference as it is described."""

Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class LerobotProcessors:
    """What the processor files decide.

    Attributes:
        renames: observation key of the robot -> key of the policy.
        state_scaling, action_scaling: LeRobot's names, such as `QUANTILES`.
        state_epsilon, action_epsilon: of the normaliser and the un-normaliser.
        relative: are masked actions relative to the state?
        excluded_joints, action_names: decide the mask, see `relative_mask`.
        tokenizer: the tokenizer's folder below the checkpoint, or the name of one elsewhere.
        prompt_slots: token slots of the prompt, where the file says so.
        has_relative_step: files without that step come from a release before 0.5.1.
    """

    renames: tuple[tuple[str, str], ...]
    state_scaling: str
    action_scaling: str
    state_epsilon: float
    action_epsilon: float
    relative: bool
    excluded_joints: tuple[str, ...]
    action_names: tuple[str, ...] | None
    tokenizer: str | None
    prompt_slots: int | None
    has_relative_step: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LerobotFeature:
    """An entry of `input_features` or `output_features`; `kind` is VISUAL, STATE or ACTION."""

    kind: str
    shape: tuple[int, ...]


def read_processors(folder: Path) -> LerobotProcessors | None:
    """Read both files of a policy folder; None when it has neither.

    Raises:
        FrontendError: one file is missing or malformed; a step or
            setting is unknown, misplaced or absent.
    """
    paths = folder / PREPROCESSOR_FILE, folder / POSTPROCESSOR_FILE
    present = [path.is_file() for path in paths]
    if not any(present):
        return None
    if not all(present):
        missing = paths[present.index(False)]
        raise FrontendError(f"{missing}: missing, though the other processor file is there.")
    before = _read_steps(paths[0], _PREPROCESSOR_STEPS)
    after = _read_steps(paths[1], _POSTPROCESSOR_STEPS)
    _require(before, (NORMALIZER, PREPARE_STATE, TOKENIZER), paths[0])
    _require(after, (UNNORMALIZER,), paths[1])
    return _combine(before, after, folder)


def processors_of_config(config: Mapping[str, object]) -> LerobotProcessors:
    """What LeRobot would write into the processor files of a folder that has none.

    Raises:
        FrontendError: the configuration names no normalisation.
    """
    settings = {"norm_map": config.get("normalization_mapping")}
    names = config.get("action_feature_names")
    return LerobotProcessors(
        renames=(),
        state_scaling=_scaling(settings, "STATE", "config.json"),
        action_scaling=_scaling(settings, "ACTION", "config.json"),
        state_epsilon=DEFAULT_EPSILON,
        action_epsilon=DEFAULT_EPSILON,
        relative=bool(config.get("use_relative_actions", False)),
        excluded_joints=_texts(config.get("relative_exclude_joints") or []),
        action_names=None if names is None else _texts(names),
        tokenizer="tokenizer",
        prompt_slots=None,
        has_relative_step=True,
    )


def lerobot_features(config: Mapping[str, object], key: str) -> dict[str, LerobotFeature]:
    """`input_features` or `output_features` of a configuration, in its order.

    Raises:
        FrontendError: missing or malformed.
    """
    features = config.get(key)
    if not isinstance(features, dict):
        raise FrontendError(f"config.json: {key}: expected an object, got {features!r}.")
    result: dict[str, LerobotFeature] = {}
    for name, feature in features.items():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            raise FrontendError(f"config.json: {key}.{name}: expected a type and a shape.")
        result[name] = LerobotFeature(kind=str(feature.get("type")), shape=tuple(shape))
    return result


def relative_mask(processors: LerobotProcessors, width: int) -> tuple[bool, ...] | None:
    """Which of `width` action columns are relative; None when none is.

    A column is absolute when an excluded joint's name occurs in the column's name, in any case of
    letters. Without column names all columns are relative.
    """
    if not processors.relative:
        return None
    excluded = [joint.lower() for joint in processors.excluded_joints if joint]
    names = processors.action_names
    if not excluded or names is None:
        return (True,) * width
    mask = [not any(joint in name.lower() for joint in excluded) for name in names[:width]]
    return tuple(mask + [True] * (width - len(mask)))


def _combine(
    before: Mapping[str, Settings], after: Mapping[str, Settings], folder: Path
) -> LerobotProcessors:
    where = str(folder / PREPROCESSOR_FILE)
    relative = before.get(RELATIVE, {})
    enabled = bool(relative.get("enabled", False))
    if enabled != bool(after.get(ABSOLUTE, {}).get("enabled", False)):
        raise FrontendError(
            f"{folder}: {RELATIVE} is {'on' if enabled else 'off'} before the network, and "
            f"{ABSOLUTE} is the opposite after it. Repair the processor files."
        )
    names = relative.get("action_names")
    tokenizer = before[TOKENIZER]
    return LerobotProcessors(
        renames=_renames(before.get(RENAME, {}), where),
        state_scaling=_scaling(before[NORMALIZER], "STATE", where),
        action_scaling=_scaling(after[UNNORMALIZER], "ACTION", str(folder / POSTPROCESSOR_FILE)),
        state_epsilon=_epsilon(before[NORMALIZER]),
        action_epsilon=_epsilon(after[UNNORMALIZER]),
        relative=enabled,
        excluded_joints=_texts(relative.get("exclude_joints") or []),
        action_names=None if names is None else _texts(names),
        tokenizer=_optional_text(tokenizer.get("tokenizer_name")),
        prompt_slots=_optional_integer(tokenizer.get("max_length")),
        has_relative_step=RELATIVE in before,
    )


def _read_steps(path: Path, known: Mapping[str, tuple[str, ...]]) -> dict[str, Settings]:
    """The settings of each step by its name, checked against the table."""
    content = read_json_object(path)
    steps = content.get("steps")
    if not isinstance(steps, list):
        raise FrontendError(f"{path}: expected a list under 'steps', got {type(steps).__name__}.")
    result: dict[str, Settings] = {}
    for index, step in enumerate(steps):
        name, settings = _read_step(step, f"{path}: step {index}", known)
        if name in result:
            raise FrontendError(f"{path}: step {index}: '{name}' occurs twice.")
        result[name] = settings
    expected = [name for name in known if name in result]
    if list(result) != expected:
        raise FrontendError(
            f"{path}: steps run as {', '.join(result)}; expected {', '.join(expected)}. "
            "Another order computes something else."
        )
    return result


def _read_step(
    step: object, where: str, known: Mapping[str, tuple[str, ...]]
) -> tuple[str, Settings]:
    if not isinstance(step, dict):
        raise FrontendError(f"{where}: expected an object, got {type(step).__name__}.")
    name = step.get("registry_name", step.get("class"))
    if not isinstance(name, str) or name not in known:
        raise FrontendError(
            f"{where}: unknown processor step '{name}', which would change inference. "
            f"Known: {', '.join(known)}."
        )
    settings = step.get("config") or {}
    if not isinstance(settings, dict):
        raise FrontendError(f"{where}, {name}: expected an object under 'config'.")
    unknown = sorted(set(settings) - set(known[name]))
    if unknown:
        raise FrontendError(
            f"{where}, {name}: unknown settings {', '.join(unknown)}; "
            f"known: {', '.join(known[name]) or 'none'}."
        )
    for owner, key, harmless in _HARMLESS_VALUES:
        if owner == name and settings.get(key, harmless[0]) not in harmless:
            raise FrontendError(
                f"{where}, {name}: {key} = {settings[key]!r} is not supported; "
                f"expected {' or '.join(repr(value) for value in harmless)}."
            )
    return name, settings


def _require(steps: Mapping[str, Settings], names: tuple[str, ...], path: Path) -> None:
    missing = [name for name in names if name not in steps]
    if missing:
        raise FrontendError(
            f"{path}: no step {', '.join(missing)}; it has {', '.join(steps) or 'none'}. "
            "Without it, raw values would reach the network or the motors."
        )


def _scaling(settings: Settings, feature: str, where: str) -> str:
    """LeRobot's name of the feature's normalisation; pictures must not have one."""
    norm_map = settings.get("norm_map")
    if not isinstance(norm_map, dict):
        raise FrontendError(f"{where}: the normaliser has no 'norm_map'.")
    if norm_map.get("VISUAL", "IDENTITY") != "IDENTITY":
        raise FrontendError(f"{where}: pictures normalised by {norm_map['VISUAL']}, not supported.")
    selected = settings.get("normalize_observation_keys")
    if isinstance(selected, list) and "observation.state" not in selected:
        raise FrontendError(f"{where}: normalize_observation_keys leaves out observation.state.")
    return str(norm_map.get(feature, "IDENTITY"))


def _epsilon(settings: Settings) -> float:
    value = settings.get("eps", DEFAULT_EPSILON)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise FrontendError(f"normaliser: expected eps from 0 to 1, got {value!r}.")
    return float(value)


def _renames(settings: Settings, where: str) -> tuple[tuple[str, str], ...]:
    renames = settings.get("rename_map") or {}
    if not isinstance(renames, dict):
        raise FrontendError(f"{where}: rename_map: expected an object of names.")
    return tuple((str(name), str(target)) for name, target in renames.items())


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise FrontendError(f"processor files: expected a list of names, got {values!r}.")
    return tuple(str(value) for value in values)


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)


def _optional_integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
