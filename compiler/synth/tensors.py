"""Names, shapes and distributions of the tensors of a pi0.5 checkpoint.

Source: openpi at commit 15a9616 (`models_pytorch`) and LeRobot at commit 7427f31, as saved by each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from policyc.compiler.ir.types import DType
from policyc.compiler.synth.dimensions import Dimensions, Transformer, Vision

_ROOT = "paligemma_with_expert."
_PALIGEMMA = _ROOT + "paligemma."
_EXPERT = _ROOT + "gemma_expert."
_VISION = _PALIGEMMA + "model.vision_tower.vision_model."
_PROJECTOR = _PALIGEMMA + "model.multi_modal_projector."
_TEXT = _PALIGEMMA + "model.language_model."

LM_HEAD = _PALIGEMMA + "lm_head.weight"
EMBEDDING = _TEXT + "embed_tokens.weight"

NORM_SPREAD = 0.1
BIAS_SPREAD = 0.02
MODULATION_SPREAD = 0.2
"""Scale, shift and gate of the expert's norms: large enough for every branch to act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor: normally distributed around `mean` with standard deviation `spread`."""

    name: str
    shape: tuple[int, ...]
    spread: float
    mean: float = 0.0
    dtype: DType = DType.BF16

    @property
    def element_count(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.element_count * self.dtype.size_bytes


def openpi_tensors(dimensions: Dimensions) -> tuple[TensorSpec, ...]:
    """What openpi's converter saves in its default precision: bfloat16, the tied table once."""
    return tuple(_network(dimensions))


def lerobot_tensors(dimensions: Dimensions) -> tuple[TensorSpec, ...]:
    """What LeRobot saves with `dtype=bfloat16`: some float32, the text embedding stored twice."""
    specs = []
    for spec in _network(dimensions):
        dtype = DType.F32 if _stays_float32(spec.name) else DType.BF16
        specs.append(replace(spec, name="model." + spec.name, dtype=dtype))
        if spec.name == LM_HEAD:
            specs.append(replace(spec, name="model." + EMBEDDING))
    return tuple(specs)


def _stays_float32(name: str) -> bool:
    """Vision tower, projector, norms, adaRMS linears and all outside the two Gemma stacks."""
    outside = not name.startswith(_ROOT)
    return outside or name.startswith((_VISION, _PROJECTOR)) or "norm." in name


def _network(dimensions: Dimensions) -> Iterator[TensorSpec]:
    text, expert = dimensions.text, dimensions.expert
    yield from _heads(expert.width, dimensions.action_width)
    yield _linear(_EXPERT + "lm_head", dimensions.vocabulary, expert.width)
    for layer in range(expert.layers):
        yield from _gemma_layer(f"{_EXPERT}model.layers.{layer}.", expert)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield from _modulation(f"{_EXPERT}model.layers.{layer}.{norm}", expert.width)
    yield from _modulation(_EXPERT + "model.norm", expert.width)
    yield _linear(LM_HEAD.removesuffix(".weight"), dimensions.vocabulary, text.width)
    for layer in range(text.layers):
        yield from _gemma_layer(f"{_TEXT}layers.{layer}.", text)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield _vector(f"{_TEXT}layers.{layer}.{norm}.weight", text.width, NORM_SPREAD)
    yield _vector(_TEXT + "norm.weight", text.width, NORM_SPREAD)
    yield from _biased(_PROJECTOR + "linear", text.width, dimensions.vision.width)
    yield from _vision_tower(dimensions.vision)


def _heads(width: int, action_width: int) -> Iterator[TensorSpec]:
    yield from _biased("action_in_proj", width, action_width)
    yield from _biased("action_out_proj", action_width, width)
    yield from _biased("time_mlp_in", width, width)
    yield from _biased("time_mlp_out", width, width)


def _gemma_layer(prefix: str, size: Transformer) -> Iterator[TensorSpec]:
    query = size.heads * size.head_width
    yield _linear(prefix + "self_attn.q_proj", query, size.width)
    yield _linear(prefix + "self_attn.k_proj", size.head_width, size.width)
    yield _linear(prefix + "self_attn.v_proj", size.head_width, size.width)
    yield _linear(prefix + "self_attn.o_proj", size.width, query)
    yield _linear(prefix + "mlp.gate_proj", size.mlp, size.width)
    yield _linear(prefix + "mlp.up_proj", size.mlp, size.width)
    yield _linear(prefix + "mlp.down_proj", size.width, size.mlp)


def _modulation(prefix: str, width: int) -> Iterator[TensorSpec]:
    spread = MODULATION_SPREAD / math.sqrt(width)
    yield TensorSpec(name=prefix + ".dense.weight", shape=(3 * width, width), spread=spread)
    yield _vector(prefix + ".dense.bias", 3 * width, MODULATION_SPREAD)


def _vision_tower(size: Vision) -> Iterator[TensorSpec]:
    patch = (size.width, 3, size.patch, size.patch)
    columns = 3 * size.patch**2
    yield TensorSpec(
        name=_VISION + "embeddings.patch_embedding.weight",
        shape=patch,
        spread=1 / math.sqrt(columns),
    )
    yield _vector(_VISION + "embeddings.patch_embedding.bias", size.width, BIAS_SPREAD)
    yield _linear(_VISION + "embeddings.position_embedding", size.tokens, size.width)
    for layer in range(size.layers):
        prefix = f"{_VISION}encoder.layers.{layer}."
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _biased(f"{prefix}self_attn.{projection}", size.width, size.width)
        yield from _biased(prefix + "mlp.fc1", size.mlp, size.width)
        yield from _biased(prefix + "mlp.fc2", size.width, size.mlp)
        yield from _layer_norm(prefix + "layer_norm1", size.width)
        yield from _layer_norm(prefix + "layer_norm2", size.width)
    yield from _layer_norm(_VISION + "post_layernorm", size.width)


def _layer_norm(prefix: str, width: int) -> Iterator[TensorSpec]:
    yield TensorSpec(name=prefix + ".weight", shape=(width,), spread=NORM_SPREAD, mean=1.0)
    yield _vector(prefix + ".bias", width, BIAS_SPREAD)


def _biased(prefix: str, rows: int, columns: int) -> Iterator[TensorSpec]:
    yield _linear(prefix, rows, columns)
    yield _vector(prefix + ".bias", rows, BIAS_SPREAD)


def _linear(prefix: str, rows: int, columns: int) -> TensorSpec:
    """[out, in], scaled so that unit inputs give unit outputs."""
    return TensorSpec(name=prefix + ".weight", shape=(rows, columns), spread=1 / math.sqrt(columns))


def _vector(name: str, width: int, spread: float) -> TensorSpec:
    return TensorSpec(name=name, shape=(width,), spread=spread)
