"""The tensors of a pi0.5 checkpoint, as data for `tensor_map.bind`.

Canonical names are openpi's, with the text embedding always under `EMBEDDING`; weights are
[out, in].

Source: Physical-Intelligence/openpi, src/openpi/models_pytorch and
examples/convert_jax_model_to_pytorch.py, commit 15a9616; huggingface/lerobot,
src/lerobot/policies/pi05, commit 7427f31, and its releases up to 0.3 for the older module paths.
"""

from __future__ import annotations

from policyc.frontends.tensor_map import Kind, Refusal, Row, TensorMap, Tie

ROOT = "paligemma_with_expert."
VISION = f"{ROOT}paligemma.model.vision_tower.vision_model."
PROJECTOR = f"{ROOT}paligemma.model.multi_modal_projector.linear"
TEXT = f"{ROOT}paligemma.model.language_model."
EXPERT = f"{ROOT}gemma_expert.model."
EMBEDDING = f"{TEXT}embed_tokens.weight"
TIED_HEAD = f"{ROOT}paligemma.lm_head.weight"


def _affine(name: str, out: str, *ins: str) -> tuple[Row, Row]:
    """Weight [out, *ins] and bias [out]."""
    return (
        Row(name=f"{name}.weight", shape=(out, *ins)),
        Row(name=f"{name}.bias", shape=(out,)),
    )


def _vision_rows() -> tuple[Row, ...]:
    layer = f"{VISION}encoder.layers.{{vision.layers}}."
    width, mlp = "vision.width", "vision.mlp"
    attention = [
        row
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        for row in _affine(f"{layer}self_attn.{name}", width, width)
    ]
    return (
        *_affine(f"{VISION}embeddings.patch_embedding", width, "3", "vision.patch", "vision.patch"),
        Row(
            name=f"{VISION}embeddings.position_embedding.weight", shape=("vision.positions", width)
        ),
        *_affine(f"{layer}layer_norm1", width),
        *_affine(f"{layer}layer_norm2", width),
        *attention,
        *_affine(f"{layer}mlp.fc1", mlp, width),
        *_affine(f"{layer}mlp.fc2", width, mlp),
        *_affine(f"{VISION}post_layernorm", width),
        *_affine(PROJECTOR, "text.width", width),
    )


def _decoder_rows(layer: str, part: str) -> tuple[Row, ...]:
    """Attention and gated MLP of a Gemma layer; `part` is the beginning of its dimensions."""
    width, query, key, mlp = (f"{part}.{name}" for name in ("width", "query", "key", "mlp"))
    shapes = {
        "self_attn.q_proj": (query, width),
        "self_attn.k_proj": (key, width),
        "self_attn.v_proj": (key, width),
        "self_attn.o_proj": (width, query),
        "mlp.gate_proj": (mlp, width),
        "mlp.up_proj": (mlp, width),
        "mlp.down_proj": (width, mlp),
    }
    return tuple(Row(name=f"{layer}{name}.weight", shape=shape) for name, shape in shapes.items())


def _text_rows() -> tuple[Row, ...]:
    layer = f"{TEXT}layers.{{text.layers}}."
    return (
        Row(name=EMBEDDING, shape=("vocabulary", "text.width")),
        *_decoder_rows(layer, "text"),
        Row(name=f"{layer}input_layernorm.weight", shape=("text.width",)),
        Row(name=f"{layer}post_attention_layernorm.weight", shape=("text.width",)),
        # Only keys and values of the prefix are used, never its last hidden state.
        Row(name=f"{TEXT}norm.weight", kind=Kind.UNUSED),
    )


def _expert_rows() -> tuple[Row, ...]:
    layer = f"{EXPERT}layers.{{expert.layers}}."
    width = "expert.width"
    # Scale, shift and gate of the adaptive norm, one below the other.
    modulation = f"3*{width}"
    return (
        *_decoder_rows(layer, "expert"),
        *_affine(f"{layer}input_layernorm.dense", modulation, width),
        *_affine(f"{layer}post_attention_layernorm.dense", modulation, width),
        *_affine(f"{EXPERT}norm.dense", modulation, width),
        # The expert predicts actions; its token head is never trained nor called.
        Row(name=f"{ROOT}gemma_expert.lm_head.weight", kind=Kind.UNUSED),
        *_affine("action_in_proj", width, "action.width"),
        *_affine("time_mlp_in", width, width),
        *_affine("time_mlp_out", width, width),
        *_affine("action_out_proj", "action.width", width),
    )


PI05_TENSORS = TensorMap(
    policy="pi0.5",
    rows=(*_vision_rows(), *_text_rows(), *_expert_rows()),
    prefixes=("model.",),
    renames=tuple(
        (f"{ROOT}paligemma.{old}", f"{ROOT}paligemma.{new}")
        for old, new in (
            ("language_model.model.", "model.language_model."),
            ("language_model.lm_head.", "lm_head."),
            ("vision_tower.", "model.vision_tower."),
            ("multi_modal_projector.", "model.multi_modal_projector."),
        )
    ),
    ties=(Tie(name=EMBEDDING, stand_in=TIED_HEAD, must_agree=("openpi",)),),
    refusals=(
        Refusal(
            pattern=r"(^|\.)(state_proj|action_time_mlp_(in|out))\.",
            message=(
                "this is a pi0 checkpoint, not pi0.5: it has a state token and mixes time into the "
                "action tokens. Choose the pi0 policy, or give a pi0.5 checkpoint."
            ),
        ),
        Refusal(
            pattern=r"(^|\.)(lora_[abAB]|lora_magnitude_vector|lora_embedding_[AB])(\.|$)",
            message="LoRA adapters are not merged. Merge them into the weights and save again.",
        ),
        Refusal(
            pattern=r"(^|\.)proprio_history_proj\.",
            message=(
                "the checkpoint was trained with proprioceptive memory, which is not supported. "
                "Give one trained without it."
            ),
        ),
    ),
    equal=(
        ("text.layers", "expert.layers"),
        ("text.query", "expert.query"),
        ("text.key", "expert.key"),
    ),
)
"""What a pi0.5 checkpoint holds; layer l of the expert attends with layer l of the text."""
