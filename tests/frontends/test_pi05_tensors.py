"""The pi0.5 map against the official checkpoints, and variations that users meet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.errors import CheckpointError
from policyc.frontends.pi05_tensors import EMBEDDING, EXPERT, PI05_TENSORS, ROOT, TEXT, TIED_HEAD
from policyc.frontends.tensor_map import Binding, Kind, bind
from tests.frontends.checkpoints import Tensors, official_tensors, write_checkpoint

DIMS = {
    "vision.width": 144,
    "vision.layers": 2,
    "vision.mlp": 304,
    "vision.positions": 16,
    "vision.patch": 14,
    "text.width": 128,
    "text.layers": 3,
    "text.mlp": 256,
    "text.query": 128,
    "text.key": 32,
    "vocabulary": 512,
    "expert.width": 64,
    "expert.layers": 3,
    "expert.mlp": 128,
    "expert.query": 128,
    "expert.key": 32,
    "action.width": 32,
}
UNUSED = (f"{ROOT}gemma_expert.lm_head.weight", f"{TEXT}norm.weight")


def bound(folder: Path) -> Binding:
    return bind(Checkpoint.open(folder), PI05_TENSORS)


def values(folder: Path) -> dict[str, bytes]:
    """Bytes of every bound tensor by its canonical name."""
    checkpoint = Checkpoint.open(folder)
    tensors = bind(checkpoint, PI05_TENSORS).tensors
    return {name: checkpoint.read(source).tobytes() for name, source in tensors.items()}


def renamed(tensors: Tensors, *pairs: tuple[str, str]) -> Tensors:
    result = {}
    for name, array in tensors.items():
        for old, new in pairs:
            if name.startswith(old):
                name = new + name.removeprefix(old)
                break
        result[name] = array
    return result


@pytest.mark.parametrize("fixture", ["pi05_fp32/openpi", "pi05_bf16/openpi"])
def test_official_openpi_checkpoints(oracles: Path, fixture: str) -> None:
    binding = bound(oracles / fixture)
    assert binding.dims == DIMS
    assert binding.unused == UNUSED
    assert binding.tensors[EMBEDDING] == TIED_HEAD
    assert len(binding.tensors) == 110
    assert len(binding.notes) == 1 and EMBEDDING in binding.notes[0]


def test_the_official_lerobot_checkpoint(oracles: Path) -> None:
    binding = bound(oracles / "pi05_lerobot" / "lerobot")
    assert binding.dims == DIMS
    assert binding.tensors[EMBEDDING] == f"model.{EMBEDDING}"
    assert set(binding.unused) == {f"model.{name}" for name in (*UNUSED, TIED_HEAD)}
    assert set(binding.tensors) == set(bound(oracles / "pi05_fp32" / "openpi").tensors)


def test_the_small_trained_policy(small_policy: Path) -> None:
    dims = bound(small_policy / "openpi").dims
    assert (dims["vision.layers"], dims["text.layers"], dims["expert.width"]) == (4, 4, 256)


@pytest.mark.parametrize("fixture", ["pi0_fp32/openpi", "pi0_lerobot/lerobot"])
def test_a_pi0_checkpoint_is_named(oracles: Path, fixture: str) -> None:
    with pytest.raises(CheckpointError, match="this is a pi0 checkpoint, not pi0.5.*state_proj"):
        bound(oracles / fixture)


def test_the_tied_embedding(oracles: Path, tmp_path: Path) -> None:
    """case 1: only lm_head gives the same weights as both; neither is refused with both names."""
    tensors = official_tensors(oracles)
    tied = write_checkpoint(tmp_path / "tied", oracles, tensors)
    tensors[EMBEDDING] = tensors[TIED_HEAD].copy()
    untied = write_checkpoint(tmp_path / "untied", oracles, tensors)
    assert values(tied) == values(untied)
    del tensors[EMBEDDING], tensors[TIED_HEAD]
    neither = write_checkpoint(tmp_path / "neither", oracles, tensors)
    with pytest.raises(CheckpointError, match=f"neither '{EMBEDDING}' nor '{TIED_HEAD}'"):
        bound(neither)


OLDER = (
    (f"{ROOT}paligemma.model.language_model.", f"{ROOT}paligemma.language_model.model."),
    (f"{ROOT}paligemma.lm_head.", f"{ROOT}paligemma.language_model.lm_head."),
    (f"{ROOT}paligemma.model.", f"{ROOT}paligemma."),
)


def test_naming_layouts(oracles: Path, tmp_path: Path) -> None:
    """case 2: older paths and a leading `model.` bind to the same; half-and-half is refused."""
    tensors = official_tensors(oracles)
    expected = values(oracles / "pi05_fp32" / "openpi")
    older = renamed(tensors, *OLDER)
    # All but the expert and the projections moved: 37 of vision, 2 projector, 29 text.
    assert sum(name in tensors for name in older) == 112 - 68
    for name, variant in (
        ("older", older),
        ("prefixed", {f"model.{name}": array for name, array in tensors.items()}),
        ("both", {f"model.{name}": array for name, array in older.items()}),
    ):
        assert values(write_checkpoint(tmp_path / name, oracles, variant)) == expected
    half = renamed(tensors, *OLDER[2:])
    folder = write_checkpoint(tmp_path / "half", oracles, half)
    with pytest.raises(CheckpointError, match=r"mix two layouts: \d+ under older.*vision_tower"):
        bound(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{EXPERT}layers.0.self_attn.q_proj.lora_A.weight", "LoRA adapters are not merged"),
        (f"{TEXT}layers.0.mlp.gate_proj.lora_b", "LoRA adapters are not merged"),
        ("proprio_history_proj.weight", "proprioceptive memory"),
        ("value_head.weight", "1 that the policy does not know: value_head.weight"),
    ],
)
def test_tensors_that_are_too_many(oracles: Path, tmp_path: Path, name: str, message: str) -> None:
    tensors = official_tensors(oracles) | {name: np.ones((2, 2), np.float32)}
    with pytest.raises(CheckpointError, match=message):
        bound(write_checkpoint(tmp_path / "more", oracles, tensors))


def test_every_required_tensor_is_missed(oracles: Path, tmp_path: Path) -> None:
    tensors = official_tensors(oracles)
    required = bound(oracles / "pi05_fp32" / "openpi").tensors
    rows = {row.name for row in PI05_TENSORS.rows if row.kind is Kind.REQUIRED}
    assert len(rows) == 54
    for index, name in enumerate(sorted(required)[::20]):
        left = {key: array for key, array in tensors.items() if key != required[name]}
        folder = write_checkpoint(tmp_path / str(index), oracles, left)
        with pytest.raises(CheckpointError, match=name.replace("layers.0", r"layers\.0")):
            bound(folder)


def test_attention_widths_of_both_stacks_are_equal(oracles: Path, tmp_path: Path) -> None:
    tensors = official_tensors(oracles)
    for layer in range(3):
        for part in ("k_proj", "v_proj"):
            name = f"{EXPERT}layers.{layer}.self_attn.{part}.weight"
            tensors[name] = tensors[name][:16].copy()
    with pytest.raises(CheckpointError, match="text.key is 32 but expert.key is 16"):
        bound(write_checkpoint(tmp_path / "narrow", oracles, tensors))
