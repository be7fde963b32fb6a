"""The compile as a whole; for what its bundles compute see `tests/test_oracles_end_to_end.py`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from policyc import __version__
from policyc.compiler import compile as driver
from policyc.compiler.compile import CompileReport, compile_checkpoint
from policyc.compiler.events import Event
from policyc.compiler.options import CompileOptions, OptionError, Precision
from policyc.compiler.pipeline import PIPELINE
from policyc.frontends.checkpoint import sha256_of
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.policy import Policy
from tests.oracles import oracle

SLOTS = 64


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compile")


@pytest.fixture(scope="module")
def report(oracles: Path, folder: Path, events: list[Event]) -> CompileReport:
    """One compile with two batch sizes, a dump, a renamed camera and a default prompt."""
    options = CompileOptions(
        checkpoint=oracles / "pi05_bf16" / "openpi",
        output=folder / "arm.policy",
        targets=("cpu",),
        precision=Precision.FLOAT32,
        steps=2,
        prompt_slots=SLOTS,
        batch=(1, 2),
        cameras=(("top", "base_0_rgb"),),
        default_prompt="pick up the red block",
        dump=folder / "dump",
    )
    return compile_checkpoint(options, events.append)


@pytest.fixture
def bundle(report: CompileReport, folder: Path) -> Bundle:
    assert report.seconds > 0
    return Bundle.open(folder / "arm.policy", "all")


def test_every_step_is_reported(report: CompileReport, events: list[Event]) -> None:
    assert len(report.passes) == len(PIPELINE)
    kinds = [event.kind for event in events]
    assert kinds.count("pass") == 2 * len(PIPELINE) and kinds.count("trace") == 2
    assert [kind for kind in kinds if kind in ("read", "golden", "write")] == [
        *("read", "golden", "write"),
    ]
    assert kinds[-1] == "memory" and report.peak_memory_bytes > 1 << 26
    assert any("tied partner" in event.text for event in events if event.kind == "note")


def test_the_dump_has_a_file_for_every_pass(report: CompileReport, folder: Path) -> None:
    for batch in (1, 2):
        dumped = sorted(path.name for path in (folder / "dump" / f"batch_{batch}").iterdir())
        for record in report.passes:
            assert any(name.endswith(f"_{record.name}.ir") for name in dumped), record.name


def test_the_manifest_says_what_was_decided(bundle: Bundle, oracles: Path) -> None:
    """Case 32: the effective precision; case 13: the statistics; case 28: what stays in float32."""
    manifest = bundle.manifest
    assert (manifest.policy, manifest.precision) == ("pi05", "float32")
    options = manifest.options
    assert options["statistics"] == "tiny_arm" and options["steps"] == 2
    assert options["batch_buckets"] == [1, 2] and options["views"] == 3
    assert options["float32_products"] == ["action_in_proj", "action_out_proj"]
    assert manifest.provenance["tools"]["policyc"] == __version__  # type: ignore[index]
    sources = manifest.provenance["sources"]
    checkpoint = oracles / "pi05_bf16" / "openpi"
    assert isinstance(sources, dict)
    assert sources["model.safetensors"] == sha256_of(checkpoint / "model.safetensors")
    assert sources["model.safetensors"] in (bundle.folder / "NOTICE").read_text()


def test_buckets_share_their_weights_and_agree(bundle: Bundle) -> None:
    """Case 27, case 74: a batch of two is two single calls, to a rounding."""
    inputs, other = (oracle("pi05_bf16").inputs(case) for case in ("plain", "masked"))
    both = {name: np.concatenate([inputs[name], other[name]]) for name in inputs}
    with Policy.load(bundle.folder, "cpu") as policy:
        single = [policy.run(item)["actions"][0] for item in (inputs, other)]
        pair = policy.run(both)["actions"]
    np.testing.assert_allclose(pair, np.stack(single), atol=2e-5, rtol=0)
    names = [set(value.name for value in bundle.graph(batch).weights) for batch in (1, 2)]
    assert names[0] == names[1]


def test_the_users_camera_and_prompt_are_stored(bundle: Bundle) -> None:
    """Case 19, case 22: the robot's own camera name, and an instruction where none is given."""
    observation = {
        "images": {"top": np.full((30, 40, 3), 120, np.uint8)},
        "state": np.zeros(8, np.float32),
    }
    with Policy.load(bundle.folder, "cpu") as policy:
        silent = policy.infer(observation, seed=1)
        told = policy.infer({**observation, "prompt": "pick up the red block"}, seed=1)
        other = policy.infer({**observation, "prompt": "fold the shirt"}, seed=1)
    np.testing.assert_array_equal(silent, told)
    assert np.abs(silent - other).max() > 1e-3


def test_an_impossible_output_stops_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("text")
    monkeypatch.setattr(driver.Checkpoint, "open", lambda folder: pytest.fail("was read"))
    options = CompileOptions(
        checkpoint=tmp_path / "none", output=tmp_path / "full", targets=("cpu",)
    )
    with pytest.raises(OptionError, match="not a bundle"):
        compile_checkpoint(options, print)


def test_the_description_is_plain_data(bundle: Bundle) -> None:
    """Case 83: seven named columns, whatever the model's width."""
    actions = json.loads((bundle.folder / "processing.json").read_text())["actions"]
    assert (actions["width"], actions["model_width"], len(actions["names"])) == (7, 32, 7)
