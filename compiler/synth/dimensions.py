"""Sizes of synthetic pi0.5 checkpoints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """SigLIP tower: `image` and `patch` in pixels, the rest in features."""

    layers: int
    width: int
    mlp: int
    image: int
    patch: int = 14

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A Gemma stack with one key/value head."""

    layers: int
    width: int
    mlp: int
    heads: int
    head_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Everything that the tensor shapes and the config files are made from."""

    vision: Vision
    text: Transformer
    expert: Transformer
    vocabulary: int
    horizon: int = 50
    action_width: int = 32
    robot_actions: int = 7
    robot_state: int = 8
    prompt_slots: int = 200
    cameras: tuple[str, ...] = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


# Source: openpi at commit 15a9616, `gemma_2b`, `gemma_300m` and SigLIP So400m/14 (as public files).
FULL = Dimensions(
    vision=Vision(layers=27, width=1152, mlp=4304, image=224),
    text=Transformer(layers=18, width=2048, mlp=16384, heads=8, head_width=256),
    expert=Transformer(layers=18, width=1024, mlp=4096, heads=8, head_width=256),
    vocabulary=257152,
)

# Heads of 72 and an MLP of 16 x 19 keep what is awkward about the full size.
TINY = Dimensions(
    vision=Vision(layers=2, width=144, mlp=304, image=56),
    text=Transformer(layers=2, width=128, mlp=256, heads=4, head_width=32),
    expert=Transformer(layers=2, width=64, mlp=128, heads=4, head_width=32),
    vocabulary=512,
)

SIZES = {"full": FULL, "tiny": TINY}
