"""From a pi0.5 checkpoint folder to a policy that can be traced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isqrt

import numpy as np

from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.errors import CheckpointError
from policyc.frontends.pi05 import LONGEST_PERIOD, SHORTEST_PERIOD, Pi05, Pi05Shape
from policyc.frontends.pi05_processing import emit_processing
from policyc.frontends.pi05_tensors import PI05_TENSORS
from policyc.frontends.policy import Family, PolicyOptions, PreparedPolicy
from policyc.frontends.statistics import read_statistics
from policyc.frontends.tensor_map import Binding, bind

DEFAULT_STEPS = 10
GOLDEN_SEED = 20250901
PRECISION_SETTING = {"openpi": ("precision", "bfloat16"), "lerobot": ("dtype", "float32")}
"""Layout -> the setting that names the serving precision, and its default in the layout's code."""
PRECISIONS = {"bfloat16": False, "bf16": False, "float32": True, "fp32": True, "float": True}
"""Spelling -> is it float32?"""

KEEP_FLOAT32 = ("action_in_proj", "action_out_proj")
"""Products on the action chunk itself, which is integrated in float32 (pitfall 9)."""

FIXED_SETTINGS: Mapping[str, object] = {
    "min_period": SHORTEST_PERIOD,
    "max_period": LONGEST_PERIOD,
    "rtc_config": None,
    "rtc_training_max_delay": 0,
    "use_visual_memory": False,
    "use_proprioceptive_memory": False,
    "use_peft": False,
    "adapt_to_pi_aloha": False,
}
"""Settings that change the computation, with the only value that is supported."""

# fmt: off
KNOWN_SETTINGS = frozenset({
    "type", "n_obs_steps", "input_features", "output_features", "device", "use_amp",
    "push_to_hub", "repo_id", "private", "tags", "license", "pretrained_path",
    "pretrained_revision", "paligemma_variant", "action_expert_variant", "dtype", "chunk_size",
    "n_action_steps", "memory_frames", "memory_stride", "memory_temporal_attention_every",
    "max_state_dim", "max_action_dim", "num_inference_steps", "use_relative_actions",
    "relative_exclude_joints", "action_feature_names", "image_resolution", "empty_cameras",
    "tokenizer_max_length", "normalization_mapping", "action_dim", "action_horizon", "precision",
    "pytorch_compile_mode", "max_token_len", "pi05", "discrete_state_input",
    "gradient_checkpointing", "compile_model", "compile_mode", "freeze_vision_encoder",
    "train_expert_only",
})
# fmt: on
HARMLESS_SETTING = re.compile(
    r"(optimizer|scheduler|time_sampling|wandb|train|training|log|save|eval|hub)_\w+"
    r"|\w*(seed|_path)"
)
"""Names of settings that concern training and bookkeeping alone."""


def is_pi05(checkpoint: Checkpoint) -> bool:
    """Does the configuration or, where it is silent, the tensor names say pi0.5 (or its kin pi0)?

    A pi0 checkpoint is taken too, so that the tensor map can say why it is refused.
    """
    kind = checkpoint.config.get("type")
    if kind is not None:
        return kind in ("pi05", "pi0")
    return any("paligemma_with_expert." in name for name in checkpoint.tensors)


def prepare(checkpoint: Checkpoint, options: PolicyOptions) -> PreparedPolicy:
    """Check everything and gather what compiling needs.

    Raises:
        FrontendError: what is missing, unknown, inconsistent or unsupported.
    """
    options = replace(options, is_float32=_is_float32(checkpoint, options))
    binding = bind(checkpoint, PI05_TENSORS)
    notes = [*checkpoint.notes, *binding.notes, *_checked_settings(checkpoint)]
    side = _image_side(binding)
    statistics = read_statistics(checkpoint, options.statistics)
    processing_options = replace(options.processing, image_size=(side, side))
    processing, files = emit_processing(
        checkpoint.folder, checkpoint.layout, checkpoint.config, statistics, processing_options
    )
    shape = _shape(checkpoint, binding, options, processing)
    source = _Source(checkpoint, binding)
    return PreparedPolicy(
        family="pi05",
        layout=checkpoint.layout,
        model=lambda batch: Pi05(replace(shape, batch=batch)).model(source.types()),
        read_weight=_Weights(source, Pi05(shape).model(source.types()).constants).read,
        is_float32=bool(options.is_float32),
        keep_float32=KEEP_FLOAT32,
        processing=processing,
        processing_files=files,
        settings={**_settings(shape, statistics.id), **_licence(checkpoint)},
        golden_inputs=lambda batch: golden_inputs(replace(shape, batch=batch)),
        source_digests=lambda: {**checkpoint.file_digests(), **statistics.file_digests},
        notes=tuple(notes),
    )


def _checked_settings(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Stop on a setting that changes inference in an unsupported way; note those that do not
    matter."""
    ignored = []
    for name, value in sorted(checkpoint.config.items()):
        if name in FIXED_SETTINGS:
            if value != FIXED_SETTINGS[name]:
                raise CheckpointError(
                    f"{checkpoint.folder}/config.json: {name} is {value!r}, which changes "
                    f"inference; only {FIXED_SETTINGS[name]!r} is supported."
                )
        elif HARMLESS_SETTING.fullmatch(name):
            ignored.append(name)
        elif name not in KNOWN_SETTINGS:
            raise CheckpointError(
                f"{checkpoint.folder}/config.json: unknown setting {name} = {value!r}, which may "
                "change inference. Remove it if it does not; settings that are known to concern "
                "training alone are ignored."
            )
    if not ignored:
        return ()
    return (f"config.json: {len(ignored)} settings of training are ignored: {', '.join(ignored)}",)


def _is_float32(checkpoint: Checkpoint, options: PolicyOptions) -> bool:
    """The user's choice, else what the checkpoint is served in, else what its code defaults to."""
    if options.is_float32 is not None:
        return options.is_float32
    key, default = PRECISION_SETTING[checkpoint.layout]
    stated = str(checkpoint.config.get(key, default)).lower().removeprefix("torch.")
    if stated not in PRECISIONS:
        raise CheckpointError(
            f"{checkpoint.folder}/config.json: {key} is {stated!r}; known: "
            f"{', '.join(sorted(PRECISIONS))}. Choose one with --precision."
        )
    return PRECISIONS[stated]


def _image_side(binding: Binding) -> int:
    positions = binding.dims["vision.positions"]
    side = isqrt(positions)
    if side * side != positions:
        raise CheckpointError(
            f"vision position table has {positions} rows, expected a square number"
        )
    return side * binding.dims["vision.patch"]


def _shape(
    checkpoint: Checkpoint,
    binding: Binding,
    options: PolicyOptions,
    processing: Mapping[str, object],
) -> Pi05Shape:
    is_openpi = checkpoint.layout == "openpi"
    rounded = options.rounded_rope
    if rounded is None:
        rounded = not is_openpi and not options.is_float32
    return Pi05Shape(
        dims=binding.dims,
        batch=1,
        views=_size(processing, "views"),
        prompt_slots=_size(processing, "prompt_slots"),
        horizon=_size(processing, "horizon"),
        steps=options.steps or _default_steps(checkpoint),
        rounded_rope=rounded,
        accumulated_time=is_openpi,
    )


def _size(processing: Mapping[str, object], name: str) -> int:
    """A size of the model as the processing description states it."""
    if name == "views":
        cameras = processing["cameras"]
        assert isinstance(cameras, dict)
        return len(cameras["slots"])
    part = processing["prompt" if name == "prompt_slots" else "actions"]
    assert isinstance(part, dict)
    return int(part["slots" if name == "prompt_slots" else "horizon"])


def _default_steps(checkpoint: Checkpoint) -> int:
    value = checkpoint.config.get("num_inference_steps", DEFAULT_STEPS)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f"{checkpoint.folder}/config.json: num_inference_steps is {value!r}, expected 1 or more"
        )
    return value


def _settings(shape: Pi05Shape, statistics: str) -> dict[str, object]:
    return {
        "views": shape.views,
        "prompt_slots": shape.prompt_slots,
        "horizon": shape.horizon,
        "steps": shape.steps,
        "rope": "rounded" if shape.rounded_rope else "exact",
        "time_grid": "accumulated" if shape.accumulated_time else "closed_form",
        "statistics": statistics,
    }


def _licence(checkpoint: Checkpoint) -> dict[str, object]:
    """The licence of the weights, where the configuration states one (LeRobot's may)."""
    stated = checkpoint.config.get("license")
    return {"license": stated} if isinstance(stated, str) else {}


@dataclass(frozen=True, slots=True)
class _Source:
    """The checkpoint's tensors under the names of the adapter."""

    checkpoint: Checkpoint
    binding: Binding

    def types(self) -> dict[str, TensorType]:
        """Every weight as the stage functions see it: float32."""
        return {
            name: self.checkpoint.tensors[source].with_dtype(DType.F32)
            for name, source in self.binding.tensors.items()
        }

    def read(self, name: str) -> Array:
        return self.checkpoint.read(self.binding.tensors[name])


@dataclass(frozen=True, slots=True)
class _Weights:
    """Tensors of the checkpoint and constants of the adapter, by one name."""

    source: _Source
    constants: Mapping[str, Array]

    def read(self, name: str) -> Array:
        constant = self.constants.get(name)
        return self.source.read(name) if constant is None else constant


def golden_inputs(shape: Pi05Shape) -> dict[str, Array]:
    """A model-level input that exercises padding and masking, from a fixed seed.

    Images are uint8 values in the model's range, so that they can be stored as bytes; the prompt
    fills three quarters of its slots, differently for each sample; with three or more cameras
    the last is masked.
    """
    random = np.random.default_rng(GOLDEN_SEED)
    side = isqrt(shape.dims["vision.positions"]) * shape.dims["vision.patch"]
    pixels = random.integers(0, 256, (shape.batch, shape.views, 3, side, side), np.uint8)
    tokens = random.integers(1, shape.dims["vocabulary"], (shape.batch, shape.prompt_slots))
    valid = np.maximum(1, shape.prompt_slots * 3 // 4 - np.arange(shape.batch))
    token_mask = np.arange(shape.prompt_slots) < valid[:, None]
    image_mask = np.ones((shape.batch, shape.views), np.bool_)
    image_mask[:, 2:] = np.arange(shape.views)[2:] < shape.views - 1
    noise = random.standard_normal((shape.batch, shape.horizon, shape.dims["action.width"]))
    return {
        "images": pixels.astype(np.float32) / np.float32(255) * np.float32(2) - np.float32(1),
        "image_mask": image_mask,
        "tokens": np.where(token_mask, tokens, 0).astype(np.int32),
        "token_mask": token_mask,
        "noise": noise.astype(np.float32),
    }


PI05 = Family(
    name="pi05",
    description="pi0.5 of Physical Intelligence, as openpi (PyTorch) or LeRobot saves it",
    layouts=("openpi", "lerobot"),
    is_family_of=is_pi05,
    prepare=prepare,
)
