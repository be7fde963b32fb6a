"""Processing descriptions built by hand from the files of the oracle folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (lets numpy read bfloat16 tensors)
from safetensors import safe_open

SLOTS = ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"]

Description = dict[str, Any]


def normalization(kind: str, rule: str, epsilon: float, **statistics: Any) -> Description:
    vectors = {name: [float(value) for value in values] for name, values in statistics.items()}
    return {"kind": kind, "rule": rule, "epsilon": epsilon, "statistics": vectors}


def openpi_description(folder: Path, side: int, slots: int, horizon: int) -> Description:
    (path,) = folder.glob("assets/*/norm_stats.json")
    stats = json.loads(path.read_text())["norm_stats"]
    widths = {name: len(stats[name]["q01"]) for name in stats}
    scale = {
        name: normalization("quantile", "openpi", 1e-6, q01=values["q01"], q99=values["q99"])
        for name, values in stats.items()
    }
    return {
        "format": 1,
        "cameras": {
            "slots": SLOTS,
            "height": side,
            "width": side,
            "resize": "openpi",
            "missing": "keep_slot",
            "camera_map": {},
        },
        "state": {
            "width": widths["state"],
            "model_width": 32,
            "required": True,
            "normalization": scale["state"],
        },
        "prompt": {
            "format": "state",
            "cleaning": "strip",
            "slots": slots,
            "tokenizer": {"kind": "sentencepiece", "file": "tokenizer.model"},
            "bos_id": 2,
            "default": None,
        },
        "actions": {
            "horizon": horizon,
            "model_width": 32,
            "width": widths["actions"],
            "normalization": scale["actions"],
            "delta_mask": None,
            "names": [f"action_{index}" for index in range(widths["actions"])],
        },
        "notes": [],
    }


def lerobot_description(folder: Path) -> Description:
    description = openpi_description(
        folder.parents[1] / "pi05_fp32" / "openpi", side=56, slots=64, horizon=10
    )
    (path,) = folder.glob("policy_preprocessor_step_*_normalizer_processor.safetensors")
    with safe_open(path, "np") as tensors:
        for name, prefix in (("state", "observation.state"), ("actions", "action")):
            q01, q99 = (tensors.get_tensor(f"{prefix}.{key}") for key in ("q01", "q99"))
            scale = normalization("quantile", "lerobot", 1e-8, q01=q01, q99=q99)
            description[name]["normalization"] = scale
    description["cameras"] |= {"resize": "lerobot", "missing": "move_last"}
    description["prompt"]["tokenizer"] = {"kind": "tokenizers", "file": "tokenizer.json"}
    return description
