from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from safetensors import safe_open
from safetensors.numpy import load_file

from policyc.compiler.events import Event
from policyc.compiler.synth import SynthesisError, SynthesisOptions, synthesise
from policyc.compiler.synth.checkpoint import split_evenly
from policyc.compiler.synth.dimensions import TINY
from policyc.compiler.synth.tensors import openpi_tensors


def make(folder: Path, **options: object) -> Path:
    events: list[Event] = []
    synthesise(SynthesisOptions(output=folder, **options), events.append)  # type: ignore[arg-type]
    assert events and events[-1].text == str(folder)
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("layout", ["openpi", "lerobot"])
def test_same_options_same_bytes(tmp_path: Path, layout: str) -> None:
    first = digests(make(tmp_path / "a", layout=layout, seed=3))
    assert first == digests(make(tmp_path / "b", layout=layout, seed=3))
    other = digests(make(tmp_path / "c", layout=layout, seed=4))
    assert first["model.safetensors"] != other["model.safetensors"]


def test_openpi_names_are_those_of_the_official_files(tmp_path: Path, oracles: Path) -> None:
    folder = make(tmp_path / "a")
    with safe_open(oracles / "pi05_bf16/openpi/model.safetensors", "np") as official:
        layers = re.compile(r"\.layers\.2\.")  # the fixture has three language blocks, ours two
        wanted = {name for name in official.keys() if not layers.search(name)}  # noqa: SIM118
        metadata = official.metadata()
    with safe_open(folder / "model.safetensors", "np") as ours:
        assert set(ours.keys()) == wanted
        assert ours.metadata() == metadata


def test_lerobot_names_and_dtypes_are_those_of_the_official_files(
    tmp_path: Path, oracles: Path
) -> None:
    folder = make(tmp_path / "a", layout="lerobot")
    official = oracles / "pi05_lerobot" / "lerobot"
    ours, wanted = dtypes(folder / "model.safetensors"), dtypes(official / "model.safetensors")
    assert ours.items() == {item for item in wanted.items() if ".layers.2." not in item[0]}
    assert {path.name for path in folder.iterdir()} == {path.name for path in official.iterdir()}
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        theirs, mine = (json.loads((root / name).read_text()) for root in (official, folder))
        assert [step["registry_name"] for step in mine["steps"]] == [
            step["registry_name"] for step in theirs["steps"]
        ]
    config = json.loads((folder / "config.json").read_text())
    theirs = json.loads((official / "config.json").read_text())
    assert set(config) <= set(theirs)
    assert config["chunk_size"] == 50 and config["normalization_mapping"]["STATE"] == "QUANTILES"


def dtypes(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return {name: entry["dtype"] for name, entry in header.items()}


def test_values_are_scaled_for_sane_activations(tmp_path: Path) -> None:
    tensors = load_file(make(tmp_path / "a") / "model.safetensors")
    vision = "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
    fc1 = tensors[vision + "encoder.layers.0.mlp.fc1.weight"].astype(np.float32)
    assert fc1.shape == (304, 144)
    assert abs(float(fc1.std()) * 144**0.5 - 1) < 0.02 and abs(float(fc1.mean())) < 1e-3
    norm = tensors[vision + "post_layernorm.weight"].astype(np.float32)
    assert abs(float(norm.mean()) - 1) < 0.05


def test_statistics_and_tokenizer_are_complete(tmp_path: Path) -> None:
    folder = make(tmp_path / "a")
    statistics = json.loads((folder / "assets/synthetic_arm/norm_stats.json").read_text())
    state, actions = (statistics["norm_stats"][key] for key in ("state", "actions"))
    assert (len(state["q01"]), len(actions["q99"])) == (8, 7)
    assert all(low < high for low, high in zip(state["q01"], state["q99"], strict=True))
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert tokenizer.vocab_size() == TINY.vocabulary and tokenizer.bos_id() == 2


def test_shards_hold_every_tensor_once(tmp_path: Path) -> None:
    whole = load_file(make(tmp_path / "a") / "model.safetensors")
    folder = make(tmp_path / "b", shards=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    names = sorted(set(index["weight_map"].values()))
    assert names == [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    merged = {key: value for name in names for key, value in load_file(folder / name).items()}
    assert set(index["weight_map"]) == set(whole) == set(merged)
    assert all(np.array_equal(whole[key].view("u2"), merged[key].view("u2")) for key in whole)


def test_split_is_even() -> None:
    tensors = openpi_tensors(TINY)
    shards = split_evenly(tensors, 4)
    assert [spec for shard in shards for spec in shard] == list(tensors)
    sizes = [sum(spec.size_bytes for spec in shard) for shard in shards]
    assert max(sizes) < 2 * min(sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": "jax"}, "unknown layout 'jax'; known: openpi, lerobot"),
        ({"size": "huge"}, "unknown size 'huge'; known: full, tiny"),
        ({"shards": 0}, "shards must be 1 to 999"),
    ],
)
def test_unknown_options_are_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(SynthesisError, match=message):
        make(tmp_path / "a", **changes)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(SynthesisError, match="exists"):
        make(tmp_path / "a")
