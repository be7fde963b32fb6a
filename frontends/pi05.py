"""The pi0.5 adapter: SigLIP vision tower, Gemma prefix, Gemma action expert with adaptive RMSNorm.

Source: Physical-Intelligence/openpi, src/openpi/models_pytorch and
models_pytorch/transformers_replace, commit 15a9616; the sections named below are those of the
model's specification sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import policyc.frontends.custom_ops  # noqa: F401  (registers torch.ops.policyc)
from policyc.compiler.ir.graph import Rate
from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.frontends.adapter import (
    CarrySpec,
    InputSpec,
    LoopSpec,
    ModelSpec,
    StageSpec,
    Weights,
)
from policyc.frontends.pi05_tensors import EMBEDDING, EXPERT, PROJECTOR, TEXT, VISION

VISION_HEAD_WIDTH = 72
"""Head size of SigLIP So400m, which no tensor shape shows (section 1.1)."""
NORM_EPS = 1e-6
ROPE_BASE = 10000.0
SHORTEST_PERIOD, LONGEST_PERIOD = 4e-3, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pi05Shape:
    """Everything that decides the computation of one bucket.

    Attributes:
        dims: dimensions read from the tensors, by their names in `pi05_tensors`.
        batch, views, prompt_slots, horizon, steps: sizes of one inference.
        rounded_rope: round rotary frequencies to bfloat16, as a bfloat16 module's buffers are.
        accumulated_time: the time grid adds -1/steps in float32 (openpi) instead of 1 - i/steps
            (LeRobot).
    """

    dims: Mapping[str, int]
    batch: int
    views: int
    prompt_slots: int
    horizon: int
    steps: int
    rounded_rope: bool
    accumulated_time: bool

    @property
    def image_tokens(self) -> int:
        return self.views * self.dims["vision.positions"]

    @property
    def prefix_slots(self) -> int:
        return self.image_tokens + self.prompt_slots


def linear(weights: Weights, name: str, x: Tensor, bias: bool = False) -> Tensor:
    """x @ weight^T (+ bias) of the module `name`."""
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"] if bias else None)


def layer_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return F.layer_norm(x, (x.shape[-1],), scale, shift, NORM_EPS)


def gemma_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    """RMSNorm that multiplies by (1 + w) (section 2.5)."""
    return F.rms_norm(x, (x.shape[-1],), None, NORM_EPS) * (1.0 + weights[f"{name}.weight"])


def gated_mlp(weights: Weights, name: str, x: Tensor) -> Tensor:
    gate = F.gelu(linear(weights, f"{name}.gate_proj", x), approximate="tanh")
    return linear(weights, f"{name}.down_proj", gate * linear(weights, f"{name}.up_proj", x))


def time_grid(steps: int, accumulated: bool) -> Array:
    """The time of each step, float32 [steps, 1], as the layout's own loop computes it (section
    2.7)."""
    if not accumulated:
        return np.array([[1.0 - step / steps] for step in range(steps)], np.float32)
    delta = np.float32(-1.0 / steps)
    times = [np.float32(1.0)]
    while len(times) < steps:
        times.append(np.float32(times[-1] + delta))
    return np.array(times, np.float32)[:, None]


def rope_tables(positions: int, width: int, rounded: bool) -> tuple[Array, Array]:
    """cos and sin, float32 [positions, width / 2], exact for the (rounded) frequencies (pitfall
    1)."""
    half = width // 2
    frequency = (ROPE_BASE ** (-np.arange(half) / half)).astype(np.float32)
    if rounded:
        frequency = frequency.astype(ml_dtypes.bfloat16).astype(np.float32)
    angle = np.arange(positions)[:, None] * frequency.astype(np.float64)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def time_frequencies(width: int) -> Array:
    """2 pi / period of each time feature, float64 [1, width / 2] (section 2.6)."""
    fraction = np.linspace(0.0, 1.0, width // 2)
    period = SHORTEST_PERIOD * (LONGEST_PERIOD / SHORTEST_PERIOD) ** fraction
    return (2.0 * np.pi / period)[None, :]


@dataclass(frozen=True, slots=True)
class Pi05:
    """Stage functions of one shape; `model` hands them over for tracing and for the eager
    reference."""

    shape: Pi05Shape

    def _heads(self, x: Tensor, width: int) -> Tensor:
        return x.reshape(*x.shape[:2], x.shape[2] // width, width)

    def vision(self, w: Weights, images: Tensor) -> dict[str, Tensor]:
        """Camera images [B, C, 3, H, W] in [-1, 1] -> `image_emb` [B, C, n, D] (sections 1.1,
        1.2)."""
        dims, batch = self.shape.dims, images.shape[0]
        patches = torch.ops.policyc.patchify(images, dims["vision.patch"])
        kernel = w[VISION + "embeddings.patch_embedding.weight"]
        bias = w[VISION + "embeddings.patch_embedding.bias"]
        x = F.linear(patches, kernel.reshape(kernel.shape[0], -1), bias)
        x = x.reshape(batch * self.shape.views, dims["vision.positions"], dims["vision.width"])
        x = x + w[VISION + "embeddings.position_embedding.weight"]
        for layer in range(dims["vision.layers"]):
            x = self._vision_layer(w, f"{VISION}encoder.layers.{layer}.", x)
        x = linear(w, PROJECTOR, layer_norm(w, VISION + "post_layernorm", x), bias=True)
        return {"image_emb": x.reshape(batch, self.shape.views, *x.shape[1:])}

    def _vision_layer(self, w: Weights, name: str, x: Tensor) -> Tensor:
        h = layer_norm(w, name + "layer_norm1", x)
        q, k, v = (
            self._heads(linear(w, f"{name}self_attn.{part}_proj", h, bias=True), VISION_HEAD_WIDTH)
            for part in "qkv"
        )
        h = torch.ops.policyc.attention(q, k, v, VISION_HEAD_WIDTH**-0.5)
        x = x + linear(w, name + "self_attn.out_proj", h.reshape(x.shape), bias=True)
        h = linear(w, name + "mlp.fc1", layer_norm(w, name + "layer_norm2", x), bias=True)
        return x + linear(w, name + "mlp.fc2", F.gelu(h, approximate="tanh"), bias=True)

    def prompt(self, w: Weights, tokens: Tensor) -> dict[str, Tensor]:
        """Prompt ids [B, L] -> `lang_emb` [B, L, D]."""
        return {
            "lang_emb": F.embedding(tokens, w[EMBEDDING]) * self.shape.dims["text.width"] ** 0.5
        }

    def prefix(
        self,
        w: Weights,
        image_emb: Tensor,
        lang_emb: Tensor,
        image_mask: Tensor,
        token_mask: Tensor,
    ) -> dict[str, Tensor]:
        """Keys and values of every layer over the valid prefix tokens, compacted (sections 2.4,
        2.5)."""
        batch, views, count, width = image_emb.shape
        seen = image_mask[:, :, None].expand(batch, views, count).reshape(batch, views * count)
        mask = torch.cat([seen, token_mask], dim=1)
        tokens = torch.cat([image_emb.reshape(batch, views * count, width), lang_emb], dim=1)
        x = torch.ops.policyc.compact_rows(tokens, mask)
        length = torch.ops.policyc.count_true(mask)
        results = {"prefix_mask": mask, "prefix_length": length}
        for layer in range(self.shape.dims["text.layers"]):
            name, head = f"{TEXT}layers.{layer}.", self.shape.dims["text.key"]
            h = gemma_norm(w, name + "input_layernorm", x)
            q, k, v = self._rotated(w, name + "self_attn.", h, None)
            results |= {f"prefix.k.{layer}": k, f"prefix.v.{layer}": v}
            h = torch.ops.policyc.attention(q, k, v, head**-0.5, length)
            h = h.reshape(*x.shape[:2], self.shape.dims["text.query"])
            x = x + linear(w, name + "self_attn.o_proj", h)
            x = x + gated_mlp(w, name + "mlp", gemma_norm(w, name + "post_attention_layernorm", x))
        return results

    def _rotated(
        self, w: Weights, name: str, h: Tensor, start: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = self.shape.dims["text.key"]
        q, k, v = (self._heads(linear(w, f"{name}{part}_proj", h), head) for part in "qkv")
        cos, sin = w["rope.cos"], w["rope.sin"]
        rope = torch.ops.policyc.rope
        return rope(q, cos, sin, start), rope(k, cos, sin, start), v

    def denoise(
        self, w: Weights, step: Tensor, x: Tensor, length: Tensor, *cache: Tensor
    ) -> dict[str, Tensor]:
        """One Euler step of the action chunk x [B, H, A] (sections 2.6, 2.7, 3)."""
        time = torch.ops.policyc.table_row(w["schedule.time"], step)  # [1, 1]
        angle = time.to(torch.float64) * w["schedule.frequency"]
        features = torch.cat([torch.sin(angle), torch.cos(angle)], dim=1).to(x.dtype)
        condition = F.silu(linear(w, "time_mlp_in", features, bias=True))
        condition = F.silu(linear(w, "time_mlp_out", condition, bias=True))  # [1, D]
        embedded = linear(w, "action_in_proj", x, bias=True)
        h, layers = embedded, self.shape.dims["expert.layers"]
        for layer in range(layers):
            name = f"{EXPERT}layers.{layer}."
            normed, gate = self._adaptive_norm(w, name + "input_layernorm", h, condition)
            q, k, v = self._rotated(w, name + "self_attn.", normed, length)
            scale = self.shape.dims["expert.key"] ** -0.5
            prefix_k, prefix_v = cache[layer], cache[layers + layer]
            mixed = torch.ops.policyc.attention(q, prefix_k, prefix_v, scale, length, k, v)
            mixed = mixed.reshape(*h.shape[:2], self.shape.dims["expert.query"])
            h = h + gate * linear(w, name + "self_attn.o_proj", mixed)
            normed, gate = self._adaptive_norm(w, name + "post_attention_layernorm", h, condition)
            h = h + gate * gated_mlp(w, name + "mlp", normed)
        normed, _ = self._adaptive_norm(w, EXPERT + "norm", h, condition)
        velocity = linear(w, "action_out_proj", normed, bias=True)
        following = x + velocity * (-1.0 / self.shape.steps)
        return {"suffix": embedded, "velocity": velocity, "x_next": following}

    def _adaptive_norm(
        self, w: Weights, name: str, x: Tensor, condition: Tensor
    ) -> tuple[Tensor, Tensor]:
        """n(x) * (1 + scale) + shift and the branch gate, all three from the condition (section
        3)."""
        width = x.shape[-1]
        rows = linear(w, name + ".dense", condition, bias=True)  # [1, 3 D]
        scale, shift, gate = (rows[:, i * width : (i + 1) * width] for i in range(3))
        normed = F.rms_norm(x, (width,), None, NORM_EPS) * (1.0 + scale) + shift
        return normed, gate

    def report(self, w: Weights, mask: Tensor, noise: Tensor, *values: Tensor) -> dict[str, Tensor]:
        """Intermediates at the positions and in the layout that the official code has them."""
        suffixes, velocities, states, *cache = values
        layers = self.shape.dims["text.layers"]
        results = {
            "suffix_emb": suffixes[:1].reshape(suffixes.shape[1:]),
            "v_t": velocities.permute(1, 0, 2, 3),
            "x_t": torch.cat([noise.unsqueeze(0), states], dim=0).permute(1, 0, 2, 3),
        }
        for index, tensor in enumerate(cache):
            kind, layer = ("k", index) if index < layers else ("v", index - layers)
            batch, slots, heads, width = tensor.shape
            rows = torch.ops.policyc.scatter_rows(tensor.reshape(batch, slots, heads * width), mask)
            rows = rows.reshape(*mask.shape, heads, width).permute(0, 2, 1, 3)
            results[f"{kind}.{layer}"] = rows
        return results

    def _constants(self) -> dict[str, Array]:
        shape = self.shape
        positions = shape.prefix_slots + shape.horizon
        cos, sin = rope_tables(positions, shape.dims["text.key"], shape.rounded_rope)
        return {
            "rope.cos": cos,
            "rope.sin": sin,
            "schedule.time": time_grid(shape.steps, shape.accumulated_time),
            "schedule.frequency": time_frequencies(shape.dims["expert.width"]),
        }

    def _inputs(self) -> tuple[InputSpec, ...]:
        shape, batch = self.shape, self.shape.batch
        side = int(shape.dims["vision.positions"] ** 0.5) * shape.dims["vision.patch"]
        action = (batch, shape.horizon, shape.dims["action.width"])
        rows: tuple[tuple[str, DType, tuple[int, ...], Rate], ...] = (
            ("images", DType.F32, (batch, shape.views, 3, side, side), Rate.OBSERVATION),
            ("image_mask", DType.BOOL, (batch, shape.views), Rate.OBSERVATION),
            ("tokens", DType.I32, (batch, shape.prompt_slots), Rate.PROMPT),
            ("token_mask", DType.BOOL, (batch, shape.prompt_slots), Rate.PROMPT),
            ("noise", DType.F32, action, Rate.OBSERVATION),
        )
        return tuple(
            InputSpec(name=name, type=TensorType(dtype, sizes), rate=rate)
            for name, dtype, sizes, rate in rows
        )

    def model(self, weights: Mapping[str, TensorType]) -> ModelSpec:
        """The stages with their names and rates; `weights` are the checkpoint's, in float32."""
        layers = range(self.shape.dims["text.layers"])
        cache = tuple(f"prefix.{kind}.{layer}" for kind in "kv" for layer in layers)
        loop = LoopSpec(
            count=self.shape.steps,
            carries=(CarrySpec(initial="noise", inner="x", next="x_next", final="actions"),),
            collects=(("suffix", "suffixes"), ("velocity", "velocities"), ("x_next", "states")),
        )
        stage: Callable[..., StageSpec] = StageSpec
        return ModelSpec(
            family="pi05",
            inputs=self._inputs(),
            weights=weights,
            constants=self._constants(),
            stages=(
                stage(name="prompt", rate=Rate.PROMPT, function=self.prompt, inputs=("tokens",)),
                stage(
                    name="vision", rate=Rate.OBSERVATION, function=self.vision, inputs=("images",)
                ),
                stage(
                    name="prefix",
                    rate=Rate.OBSERVATION,
                    function=self.prefix,
                    inputs=("image_emb", "lang_emb", "image_mask", "token_mask"),
                ),
                stage(
                    name="denoise",
                    rate=Rate.STEP,
                    function=self.denoise,
                    inputs=("prefix_length", *cache),
                    loop=loop,
                ),
                stage(
                    name="report",
                    rate=Rate.REPORT,
                    function=self.report,
                    inputs=("prefix_mask", "noise", "suffixes", "velocities", "states", *cache),
                ),
            ),
            outputs=("actions",),
            named=(
                "image_emb",
                "lang_emb",
                "suffix_emb",
                "v_t",
                "x_t",
                *(f"{kind}.{layer}" for kind in "kv" for layer in layers),
            ),
        )
