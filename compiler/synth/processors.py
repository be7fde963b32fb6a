"""The files beside the weights in LeRobot's layout: config, processors, statistics and tokenizer.

Source: what `save_pretrained` of LeRobot at commit 7427f31 writes for `pi05`.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policyc.compiler.synth.dimensions import Dimensions
from policyc.compiler.synth.statistics import QUANTILES, Spread, draw_spread
from policyc.compiler.synth.values import write_arrays

_NORMALISER_STATE = "policy_preprocessor_step_3_normalizer_processor.safetensors"
_UNNORMALISER_STATE = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
_NORM_MAP = {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"}


def write_lerobot_processors(folder: Path, dimensions: Dimensions, seed: int) -> None:
    """Write everything but the weights into an existing folder."""
    _write_json(folder / "config.json", policy_config(dimensions))
    _write_json(folder / "policy_preprocessor.json", _preprocessor(dimensions))
    _write_json(folder / "policy_postprocessor.json", _postprocessor(dimensions))
    statistics = lerobot_statistics(dimensions, seed)
    write_arrays(folder / _NORMALISER_STATE, statistics)
    write_arrays(folder / _UNNORMALISER_STATE, statistics)
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    stored = files("policyc.compiler.synth").joinpath("tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tokenizer / name).write_bytes(stored.joinpath(name).read_bytes())


def policy_config(dimensions: Dimensions) -> dict[str, object]:
    """The fields of `config.json` that describe inference."""
    image = dimensions.vision.image
    return {
        "type": "pi05",
        "n_obs_steps": 1,
        "input_features": _input_features(dimensions),
        "output_features": _output_features(dimensions),
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "dtype": "bfloat16",
        "chunk_size": dimensions.horizon,
        "n_action_steps": dimensions.horizon,
        "use_visual_memory": False,
        "use_proprioceptive_memory": False,
        "max_state_dim": dimensions.action_width,
        "max_action_dim": dimensions.action_width,
        "num_inference_steps": 10,
        "min_period": 0.004,
        "max_period": 4.0,
        "use_relative_actions": False,
        "relative_exclude_joints": ["gripper"],
        "action_feature_names": None,
        "rtc_config": None,
        "rtc_training_max_delay": 0,
        "image_resolution": [image, image],
        "empty_cameras": 0,
        "tokenizer_max_length": dimensions.prompt_slots,
        "normalization_mapping": _NORM_MAP,
        "compile_model": False,
        "device": "cpu",
    }


def lerobot_statistics(dimensions: Dimensions, seed: int) -> dict[str, NDArray[np.float32]]:
    """`<feature>.<statistic>` -> values, in sorted order as LeRobot stores them."""
    widths = {"observation.state": dimensions.robot_state, "action": dimensions.robot_actions}
    arrays: dict[str, NDArray[np.float32]] = {}
    for stream, (feature, width) in enumerate(widths.items()):
        values = _statistics_of(draw_spread(width, seed, stream))
        arrays |= {f"{feature}.{name}": value for name, value in values.items()}
    return dict(sorted(arrays.items()))


def _statistics_of(spread: Spread) -> dict[str, NDArray[np.float32]]:
    values = {name: spread.quantile(deviations) for name, deviations in QUANTILES.items()}
    values |= {"mean": spread.mean, "std": spread.std}
    values |= {"min": spread.quantile(-3.0), "max": spread.quantile(3.0)}
    values["count"] = np.array([10_000.0])
    return {name: value.astype(np.float32) for name, value in values.items()}


def _input_features(dimensions: Dimensions) -> dict[str, object]:
    shape = [3, dimensions.vision.image, dimensions.vision.image]
    features: dict[str, object] = {
        f"observation.images.{name}": {"type": "VISUAL", "shape": shape}
        for name in dimensions.cameras
    }
    features["observation.state"] = {"type": "STATE", "shape": [dimensions.robot_state]}
    return features


def _output_features(dimensions: Dimensions) -> dict[str, object]:
    return {"action": {"type": "ACTION", "shape": [dimensions.robot_actions]}}


def _preprocessor(dimensions: Dimensions) -> dict[str, object]:
    features = _input_features(dimensions) | _output_features(dimensions)
    relative = {"enabled": False, "exclude_joints": ["gripper"], "action_names": None}
    tokenizer = {
        "max_length": dimensions.prompt_slots,
        "task_key": "task",
        "padding_side": "right",
        "padding": "max_length",
        "truncation": True,
        "tokenizer_name": "tokenizer",
    }
    steps: list[dict[str, object]] = [
        _step("rename_observations_processor", {"rename_map": {}}),
        _step("to_batch_processor", {}),
        _step("relative_actions_processor", relative),
        _step("normalizer_processor", _normaliser(features)) | {"state_file": _NORMALISER_STATE},
        _step("pi05_prepare_state_tokenizer_processor_step", {}),
        _step("tokenizer_processor", tokenizer) | {"artifacts": {"tokenizer_name": "tokenizer"}},
        _step("device_processor", {"device": "cpu", "float_dtype": None}),
    ]
    return {"name": "policy_preprocessor", "steps": steps}


def _postprocessor(dimensions: Dimensions) -> dict[str, object]:
    unnormaliser = _step("unnormalizer_processor", _normaliser(_output_features(dimensions)))
    steps: list[dict[str, object]] = [
        unnormaliser | {"state_file": _UNNORMALISER_STATE},
        _step("absolute_actions_processor", {"enabled": False}),
        _step("device_processor", {"device": "cpu", "float_dtype": None}),
    ]
    return {"name": "policy_postprocessor", "steps": steps}


def _normaliser(features: dict[str, object]) -> dict[str, object]:
    return {"eps": 1e-08, "features": features, "norm_map": _NORM_MAP}


def _step(name: str, config: dict[str, object]) -> dict[str, object]:
    return {"registry_name": name, "config": config}


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
