"""The official pi0.5 fixtures: model inputs, weights by the adapter's names, references.

    fixture = oracle("pi05_fp32")
    model = fixture.model("masked")
    values = run_reference(model, fixture.reader(model), fixture.inputs("masked"), torch.float64)
    fixture.reference("masked", "ref64/actions")

What the fields mean, and how far the official code itself is from float64, is in
`../shared/oracles/README.md`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.frontends.adapter import ModelSpec
from policyc.frontends.checkpoint import Checkpoint
from policyc.frontends.pi05 import Pi05, Pi05Shape
from policyc.frontends.pi05_tensors import PI05_TENSORS
from policyc.frontends.tensor_map import bind

ORACLES = Path(__file__).parents[2] / "shared" / "oracles"

# Largest absolute error of the official code against float64 (README, "Yardstick").
FLOAT32_YARDSTICK = {
    "image_emb": 6.2e-6,
    "k.0": 8.1e-6,
    "v.0": 5.2e-6,
    "k.1": 1.3e-5,
    "v.1": 1.0e-5,
    "k.2": 1.5e-5,
    "v.2": 1.1e-5,
    "suffix_emb": 1.2e-6,
    "v_t": 1.1e-5,
    "x_t": 5.5e-6,
    "actions": 5.5e-6,
}
BFLOAT16_YARDSTICK = {
    "image_emb": 4.6e-2,
    "k.0": 6.8e-2,
    "v.0": 4.8e-2,
    "k.1": 9.9e-2,
    "v.1": 8.2e-2,
    "k.2": 1.4e-1,
    "v.2": 1.1e-1,
    "suffix_emb": 8.3e-7,
    "v_t": 1.4e-1,
    "x_t": 5.8e-2,
    "actions": 5.8e-2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """One fixture folder.

    Attributes:
        weights: every tensor that inference reads, float32, by the adapter's name.
        dims: dimensions read from the tensors.
        arrays: `io.safetensors`, bfloat16 as float32.
    """

    name: str
    layout: str
    weights: Mapping[str, Array]
    dims: Mapping[str, int]
    cases: Mapping[str, Mapping[str, Any]]
    arrays: Mapping[str, Array]

    def shape(self, case: str = "plain", **changes: Any) -> Pi05Shape:
        """The shape of a case: batch 1, three views, the case's steps, the layout's time grid."""
        shape = Pi05Shape(
            dims=self.dims,
            batch=1,
            views=3,
            prompt_slots=64,
            horizon=10,
            steps=self.cases[case]["num_steps"],
            rounded_rope=False,
            accumulated_time=self.layout == "openpi",
        )
        return replace(shape, **changes)

    def model(self, case: str = "plain", **changes: Any) -> ModelSpec:
        """The adapter's stages; `changes` are fields of `Pi05Shape`."""
        types = {name: TensorType(DType.F32, a.shape) for name, a in self.weights.items()}
        return Pi05(self.shape(case, **changes)).model(types)

    def reader(self, model: ModelSpec) -> Callable[[str], Array]:
        """Weights and constants by name, with or without `@`."""
        known = {**self.weights, **model.constants}
        return lambda name: known[name.removeprefix("@")]

    def inputs(self, case: str) -> dict[str, Array]:
        """The inputs of the model, with a batch axis of one."""
        images, mask = self._cameras(case)
        return {
            "images": images[None],
            "image_mask": mask[None],
            "tokens": self.arrays[f"{case}/in/tokens"].astype(np.int32)[None],
            "token_mask": self.arrays[f"{case}/in/token_mask"][None],
            "noise": self.arrays[f"{case}/in/noise"][None],
        }

    def _cameras(self, case: str) -> tuple[Array, Array]:
        """Pictures f32 [3, 3, H, W] in [-1, 1] and their mask.

        LeRobot appends a picture of -1 for each camera that is absent, after the present ones.
        """
        pixels = self.arrays[f"{case}/in/images_u8"].astype(np.float32)
        pictures = (pixels / np.float32(255) * np.float32(2) - np.float32(1)).transpose(0, 3, 1, 2)
        if self.layout == "openpi":
            return np.ascontiguousarray(pictures), self.arrays[f"{case}/in/image_mask"]
        present = self.arrays[f"{case}/in/camera_present"]
        absent = np.full_like(pictures[~present], -1.0)
        mask = np.sort(present)[::-1]
        return np.concatenate([pictures[present], absent]), np.ascontiguousarray(mask)

    def reference(self, case: str, field: str) -> Array:
        """A recorded array, such as `ref64/actions` or `out/k.1`, without a batch axis."""
        return self.arrays[f"{case}/{field}"]

    def prefix_mask(self, case: str) -> Array:
        """Which rows of `k.*` and `v.*` may be compared: bool [P]."""
        _, mask = self._cameras(case)
        tokens = self.arrays[f"{case}/in/token_mask"]
        return np.concatenate([np.repeat(mask, self.dims["vision.positions"]), tokens])


@cache
def oracle(name: str) -> Oracle:
    """A fixture by its folder's name; skips the test where the fixtures are not at hand."""
    folder = ORACLES / name
    if not folder.is_dir():
        pytest.skip(f"official fixtures are not at {folder}")
    layout = "lerobot" if (folder / "lerobot").is_dir() else "openpi"
    checkpoint = Checkpoint.open(folder / layout)
    binding = bind(checkpoint, PI05_TENSORS)
    meta = json.loads((folder / "meta.json").read_text())
    return Oracle(
        name=name,
        layout=layout,
        weights={
            ours: checkpoint.read(theirs).astype(np.float32)
            for ours, theirs in binding.tensors.items()
        },
        dims=binding.dims,
        cases={case["name"]: case for case in meta["cases"]},
        arrays=_arrays(folder / "io.safetensors"),
    )


def _arrays(path: Path) -> dict[str, Array]:
    """Every tensor of the file; bfloat16, which numpy lacks, as float32."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return {
        name: (t.float() if str(t.dtype) == "torch.bfloat16" else t).numpy()
        for name, t in tensors.items()
    }


def valid_rows(values: Mapping[str, Array], mask: Array, sample: int = 0) -> dict[str, Array]:
    """One sample of each value; of prefix keys and values [Hk, S, D] only the rows of `mask`."""
    cut = {}
    for name, array in values.items():
        own = np.asarray(array)[sample].astype(np.float64)
        cut[name] = own[:, mask] if name.startswith(("k.", "v.")) else own
    return cut


def largest_error(got: Array, expected: Array) -> float:
    assert got.shape == expected.shape, f"{got.shape} against {expected.shape}"
    return float(np.abs(got.astype(np.float64) - expected.astype(np.float64)).max())
