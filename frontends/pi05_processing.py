"""The pre- and post-processing of a pi0.5 checkpoint folder, as data for the runtime.

Source: openpi `transforms.py`, `policies/`, `training/config.py`, `models/tokenizer.py` at 15a9616;
LeRobot `policies/pi05/` and `processor/` at 7427f31.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from policyc.frontends.checkpoint import file_inside
from policyc.frontends.errors import FrontendError
from policyc.frontends.lerobot_processors import (
    LerobotFeature,
    LerobotProcessors,
    lerobot_features,
    processors_of_config,
    read_processors,
    relative_mask,
)
from policyc.frontends.processing_description import (
    Feature,
    ProcessingFacts,
    ProcessingOptions,
    describe_processing,
)
from policyc.frontends.statistics import Statistics

OPENPI_SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
OPENPI_EPSILON = 1e-6
OPENPI_IMAGE_SIDE = 224
OPENPI_PROMPT_SLOTS = 200

_IMAGE_PREFIX = "observation.images."
_LEROBOT_SCALINGS = {
    "QUANTILES": "quantile",
    "MEAN_STD": "mean_std",
    "MIN_MAX": "min_max",
    "IDENTITY": "identity",
}
_MEMORY_FLAGS = ("use_proprioceptive_memory", "use_visual_memory")
_LARGE_FILE_POINTER = b"version https://git-lfs"

Config = Mapping[str, object]


def emit_processing(
    folder: Path,
    layout: str,
    config: Config,
    statistics: Statistics | None,
    options: ProcessingOptions,
) -> tuple[dict[str, object], dict[str, Path]]:
    """Describe the processing of a checkpoint folder.

    Args:
        folder: the checkpoint.
        layout: `openpi` or `lerobot`.
        config: its `config.json`.
        statistics: the chosen statistics; None when the checkpoint has none.
        options: what the user decided.

    Returns:
        The JSON value of `processing.json`, and the files to copy: name in the bundle -> source.

    Raises:
        FrontendError: statistics, tokenizer or settings are missing, contradictory or unknown.
    """
    if layout == "openpi":
        facts = _openpi_facts(folder, config, statistics, options)
    elif layout == "lerobot":
        facts = _lerobot_facts(folder, config, options)
    else:
        raise FrontendError(f"unknown checkpoint layout '{layout}'; known: openpi, lerobot.")
    if options.raw:
        facts = replace(
            facts,
            state=replace(facts.state, scaling="identity"),
            actions=replace(facts.actions, scaling="identity"),
            notes=(*facts.notes, "raw mode: neither state nor actions are normalised"),
        )
    elif statistics is not None:
        facts = replace(facts, notes=(*facts.notes, *statistics.notes))
    facts = replace(
        facts,
        state=_with_statistics(facts.state, statistics, folder, facts.rule),
        actions=_with_statistics(facts.actions, statistics, folder, facts.rule),
    )
    return describe_processing(facts, options)


def _with_statistics(
    feature: Feature, statistics: Statistics | None, folder: Path, rule: str
) -> Feature:
    """The feature with its statistics; without them nothing but identity may be compiled.

    LeRobot's have the feature's own width. openpi cuts wider ones to the robot's width.
    """
    if feature.scaling == "identity":
        return feature
    found = None if statistics is None else getattr(statistics, feature.name)
    if found is None:
        raise FrontendError(
            f"{folder}: no statistics for {feature.name}, which the checkpoint normalises "
            f"({feature.scaling}). Without them raw values would reach the network and normalised "
            "actions the motors. Give statistics, or ask for raw mode by name."
        )
    fits = found.width == feature.width if rule == "lerobot" else found.width >= feature.width
    if not fits:
        raise FrontendError(
            f"{folder}: statistics of {feature.name} have {found.width} entries, but its width is "
            f"{feature.width}. They belong to another robot, or were padded; recompute them."
        )
    return replace(feature, statistics=found)


def _openpi_facts(
    folder: Path, config: Config, statistics: Statistics | None, options: ProcessingOptions
) -> ProcessingFacts:
    """openpi keeps slots, sizes and prompt format in its code, not in the checkpoint."""
    actions = _openpi_feature("actions", options.action_width, config, statistics)
    mask = options.delta_mask
    if mask is not None:
        mask = mask + (False,) * (actions.width - len(mask))
    return ProcessingFacts(
        rule="openpi",
        slots=OPENPI_SLOTS,
        renames=(),
        missing="keep_slot",
        image_size=options.image_size or (OPENPI_IMAGE_SIDE, OPENPI_IMAGE_SIDE),
        state=_openpi_feature("state", options.state_width, config, statistics),
        actions=actions,
        horizon=_integer(config, "action_horizon"),
        prompt_slots=OPENPI_PROMPT_SLOTS,
        state_in_prompt=options.state_in_prompt is not False,
        delta_mask=mask,
        action_names=(),
        tokenizer=_tokenizer_file(options.tokenizer, folder, None),
        notes=(),
    )


def _openpi_feature(
    name: str, width: int | None, config: Config, statistics: Statistics | None
) -> Feature:
    """Width: as the user says, else that of the statistics."""
    found = None if statistics is None else getattr(statistics, name)
    if width is None:
        if found is None:
            raise FrontendError(
                f"openpi checkpoint: no statistics for {name}, so neither its width nor its scale "
                "is known. Give statistics, or the widths and raw mode by name."
            )
        width = found.width
    return Feature(
        name=name,
        width=width,
        model_width=_integer(config, "action_dim"),
        scaling="quantile",
        epsilon=OPENPI_EPSILON,
    )


def _lerobot_facts(folder: Path, config: Config, options: ProcessingOptions) -> ProcessingFacts:
    _refuse_unsupported(config, options, folder)
    processors = read_processors(folder) or processors_of_config(config)
    inputs = lerobot_features(config, "input_features")
    state = Feature(
        name="state",
        width=_vector_width(inputs, "observation.state"),
        model_width=_integer(config, "max_state_dim"),
        scaling=_scaling(processors.state_scaling, "state"),
        epsilon=processors.state_epsilon,
    )
    actions = Feature(
        name="actions",
        width=_vector_width(lerobot_features(config, "output_features"), "action"),
        model_width=_integer(config, "max_action_dim"),
        scaling=_scaling(processors.action_scaling, "actions"),
        epsilon=processors.action_epsilon,
    )
    slots = _lerobot_slots(config, inputs)
    renames, notes = _lerobot_renames(processors, slots)
    return ProcessingFacts(
        rule="lerobot",
        slots=slots,
        renames=renames,
        missing="move_last",
        image_size=options.image_size or _resolution(config),
        state=state,
        actions=actions,
        horizon=_integer(config, "chunk_size"),
        prompt_slots=processors.prompt_slots or _integer(config, "tokenizer_max_length"),
        state_in_prompt=True,
        delta_mask=relative_mask(processors, actions.width),
        action_names=processors.action_names or (),
        tokenizer=_tokenizer_file(options.tokenizer, folder, processors.tokenizer),
        notes=(*notes, *_release_notes(processors, state.width)),
    )


def _refuse_unsupported(config: Config, options: ProcessingOptions, folder: Path) -> None:
    for flag in _MEMORY_FLAGS:
        if config.get(flag):
            raise FrontendError(f"{folder}: {flag} adds inputs that are not supported.")
    if options.state_in_prompt is False:
        raise FrontendError(f"{folder}: LeRobot's pi0.5 always writes the state into the prompt.")
    for name in ("delta_mask", "state_width", "action_width"):
        if getattr(options, name) is not None:
            raise FrontendError(
                f"{folder}: {name} is an option of openpi checkpoints; a LeRobot folder states it."
            )


def _lerobot_slots(config: Config, inputs: Mapping[str, LerobotFeature]) -> tuple[str, ...]:
    """Visual features in the order of the configuration, then the always-empty ones."""
    slots = [key for key, feature in inputs.items() if feature.kind == "VISUAL"]
    count = _integer(config, "empty_cameras", minimum=0) if "empty_cameras" in config else 0
    slots += [f"{_IMAGE_PREFIX}empty_camera_{index}" for index in range(count)]
    return tuple(dict.fromkeys(slot.removeprefix(_IMAGE_PREFIX) for slot in slots))


def _lerobot_renames(
    processors: LerobotProcessors, slots: tuple[str, ...]
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Camera renames of the checkpoint, and a note for each rename that reaches no camera."""
    pairs = [
        (name.removeprefix(_IMAGE_PREFIX), target.removeprefix(_IMAGE_PREFIX))
        for name, target in processors.renames
    ]
    notes = [
        f"rename_map: {name} -> {target} reaches no camera slot; it is not used"
        for name, target in pairs
        if target not in slots
    ]
    return tuple(pair for pair in pairs if pair[1] in slots), tuple(notes)


def _release_notes(processors: LerobotProcessors, width: int) -> tuple[str, ...]:
    """LeRobot 0.4 wrote the zero-padded state; its files differ by lacking the relative step."""
    if processors.has_relative_step:
        return ()
    return (
        "the processor files come from a LeRobot before 0.5.1; releases 0.4.x wrote 32 state "
        f"codes into the prompt, this bundle writes {width}, as LeRobot does today",
    )


def _scaling(name: str, feature: str) -> str:
    if name not in _LEROBOT_SCALINGS:
        raise FrontendError(
            f"{feature}: normalisation '{name}' is not supported; known: "
            f"{', '.join(_LEROBOT_SCALINGS)}."
        )
    return _LEROBOT_SCALINGS[name]


def _vector_width(features: Mapping[str, LerobotFeature], key: str) -> int:
    feature = features.get(key)
    if feature is None or len(feature.shape) != 1:
        found = "missing" if feature is None else f"shape {feature.shape}"
        raise FrontendError(
            f"config.json: feature '{key}' is {found}; expected a vector. "
            f"Features there: {', '.join(features) or 'none'}."
        )
    return feature.shape[0]


def _resolution(config: Config) -> tuple[int, int]:
    value = config.get("image_resolution")
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise FrontendError(f"config.json: image_resolution: expected two sizes, got {value!r}.")
    return int(value[0]), int(value[1])


def _integer(config: Config, key: str, minimum: int = 1) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise FrontendError(f"config.json: {key}: expected an integer >= {minimum}, got {value!r}.")
    return value


def _tokenizer_file(chosen: Path | None, folder: Path, stored: str | None) -> Path:
    """The user's file, else `tokenizer.model` (openpi) or that of the stored tokenizer folder.

    The runtime never asks a model hub, so a checkpoint without tokenizer stops here.
    """
    candidates = [chosen] if chosen is not None else _stored_tokenizers(folder, stored)
    for path in candidates:
        if path.is_file():
            return _checked_tokenizer(path)
    tried = ", ".join(str(path) for path in candidates) or f"'{stored}', which is no local folder"
    raise FrontendError(
        f"{folder}: no tokenizer; tried {tried}. Pass its file with --tokenizer "
        "(paligemma_tokenizer.model, or the tokenizer.json of google/paligemma-3b-pt-224)."
    )


def _stored_tokenizers(folder: Path, stored: str | None) -> list[Path]:
    if stored is None:
        return [folder / "tokenizer.model"]
    if PurePosixPath(stored).is_absolute():
        return []
    names = (f"{stored}/tokenizer.json", f"{stored}/tokenizer.model")
    return [file_inside(folder, name) for name in names]


def _checked_tokenizer(path: Path) -> Path:
    with path.open("rb") as file:
        start = file.read(len(_LARGE_FILE_POINTER))
    if not start or start == _LARGE_FILE_POINTER:
        what = "a Git LFS pointer, not the file itself" if start else "empty"
        raise FrontendError(f"{path}: {what}. Download the tokenizer again.")
    return path
