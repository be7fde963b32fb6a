"""Bad input through the command line: the exit code, a clear message, and nothing half-written."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from policyc.compiler import bundle_writer
from policyc.compiler.cli.app import run
from policyc.compiler.exit_codes import ExitCode
from tests.compiled import CompiledBundles
from tests.frontends.checkpoints import Tensors, official_tensors, write_shards

WEIGHTS = "model.safetensors"
PROMPT_SLOTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    code: int
    text: str


class Commands:
    """Runs command lines, each of which is expected to fail and to leave nothing behind."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.output = folder / "out" / "arm.policy"
        self._capture = capture

    def __call__(self, *arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        captured = self._capture.readouterr()
        assert "Traceback" not in captured.err, captured.err
        return Outcome(code=code, text=" ".join(captured.err.split()))

    def compile(self, checkpoint: Path, *options: object) -> Outcome:
        """Compile for the CPU; the output folder must not appear, nor anything beside it."""
        given = options if "--target" in options else (*options, "--target", "cpu")
        slots = () if "--prompt-slots" in options else ("--prompt-slots", PROMPT_SLOTS)
        outcome = self("compile", checkpoint, "-o", self.output, *slots, *given)
        assert not self.output.parent.exists() or list(self.output.parent.iterdir()) == []
        return outcome


@pytest.fixture
def commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.setenv("COLUMNS", "200")
    return Commands(tmp_path, capsys)


@pytest.fixture
def checkpoint(oracles: Path, tmp_path: Path) -> Path:
    """A copy of the official float32 fixture, to be damaged."""
    return shutil.copytree(oracles / "pi05_fp32" / "openpi", tmp_path / "checkpoint")


def cut_last_byte(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])


def cut_header(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:100])


def write_page(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"<!DOCTYPE html><html><body>404</body></html>")


def write_pointer(folder: Path) -> None:
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5000000\n"
    (folder / WEIGHTS).write_bytes(text)


def append_bytes(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes() + bytes(16))


def empty_file(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def remove_shard(folder: Path) -> None:
    tensors = read(folder)
    names = sorted(tensors)
    half = len(names) // 2
    first = {name: tensors[name] for name in names[:half]}
    second = {name: tensors[name] for name in names[half:]}
    (folder / WEIGHTS).unlink()
    shards = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    write_shards(folder, shards)
    (folder / "model-00002-of-00002.safetensors").unlink()


def read(folder: Path) -> Tensors:
    return official_tensors(folder.parent, folder.name)


def rewrite(folder: Path, change: Callable[[Tensors], None]) -> None:
    """Store the tensors again, changed."""
    tensors = read(folder)
    change(tensors)
    safetensors.numpy.save_file(tensors, folder / WEIGHTS)


def mix_layouts(folder: Path) -> None:
    def change(tensors: Tensors) -> None:
        for name in sorted(tensors)[::2]:
            tensors[f"model.{name}"] = tensors.pop(name)

    rewrite(folder, change)


def drop_embedding(folder: Path) -> None:
    rewrite(folder, lambda t: (t.pop("paligemma_with_expert.paligemma.lm_head.weight"), None)[1])


def add_adapter(folder: Path) -> None:
    name = "paligemma_with_expert.gemma_expert.model.layers.0.self_attn.q_proj.lora_A.weight"
    rewrite(folder, lambda t: t.update({name: np.zeros((4, 64), np.float32)}))


def add_tensor(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"value_head.weight": np.zeros((4, 64), np.float32)}))


def wrong_shape(folder: Path) -> None:
    name = "action_out_proj.weight"
    rewrite(folder, lambda t: t.update({name: np.zeros((32, 63), np.float32)}))


def integer_weight(folder: Path) -> None:
    name = "action_out_proj.weight"
    rewrite(folder, lambda t: t.update({name: t[name].astype(np.int32)}))


def no_statistics(folder: Path) -> None:
    shutil.rmtree(folder / "assets")


def two_statistics(folder: Path) -> None:
    shutil.copytree(folder / "assets" / "tiny_arm", folder / "assets" / "other_arm")


def ragged_statistics(folder: Path) -> None:
    path = folder / "assets" / "tiny_arm" / "norm_stats.json"
    content = json.loads(path.read_text())
    content["norm_stats"]["state"]["q01"].pop()
    path.write_text(json.dumps(content))


def configure(**settings: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))

    return change


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.model").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(cut_last_byte, "bytes", id="5 one byte short"),
        pytest.param(cut_header, "header", id="5 cut in the header"),
        pytest.param(empty_file, "expected at least 8 bytes, got 0", id="5 empty"),
        pytest.param(write_page, "web page", id="6 web page"),
        pytest.param(write_pointer, "git-lfs pointer", id="6 large-file pointer"),
        pytest.param(append_bytes, "16", id="8 bytes left over"),
        pytest.param(remove_shard, "model-00002-of-00002.safetensors", id="4 missing shard"),
        pytest.param(mix_layouts, "model.", id="2 two naming layouts"),
        pytest.param(drop_embedding, "lm_head", id="1 no embedding at all"),
        pytest.param(add_adapter, "LoRA", id="LoRA leftovers"),
        pytest.param(add_tensor, "value_head.weight", id="unknown tensor"),
        pytest.param(wrong_shape, "action_out_proj.weight", id="24 wrong shape"),
        pytest.param(integer_weight, "action_out_proj.weight", id="28 wrong type"),
        pytest.param(no_statistics, "assets", id="13 no statistics"),
        pytest.param(two_statistics, "other_arm", id="13 two sets of statistics"),
        pytest.param(ragged_statistics, "q01", id="14 ragged statistics"),
        pytest.param(configure(attention_window=7), "attention_window", id="10 unknown setting"),
        pytest.param(configure(use_peft=True), "use_peft", id="10 setting that is not supported"),
        pytest.param(no_tokenizer, "--tokenizer", id="18 no tokenizer"),
        pytest.param(broken_config, "config.json", id="broken configuration"),
    ],
)
def test_damaged_checkpoint(
    commands: Commands, checkpoint: Path, damage: Callable[[Path], None], message: str
) -> None:
    """The number in the test's id is the case."""
    damage(checkpoint)
    outcome = commands.compile(checkpoint)
    assert outcome.code == ExitCode.CHECKPOINT, outcome.text
    assert message in outcome.text and str(checkpoint) in outcome.text


def test_pi0_checkpoint_given_as_its_successor(commands: Commands, oracles: Path) -> None:
    outcome = commands.compile(oracles / "pi0_fp32" / "openpi")
    assert outcome.code == ExitCode.CHECKPOINT and "pi0 checkpoint, not pi0.5" in outcome.text


def test_no_checkpoint(commands: Commands, tmp_path: Path) -> None:
    outcome = commands.compile(tmp_path / "nowhere")
    assert outcome.code == ExitCode.CHECKPOINT and "nowhere" in outcome.text


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--precision", "int7"), ExitCode.USAGE, "bf16, float32"),
        (("--precision", "half"), ExitCode.USAGE, "65504"),
        (("--precision", "w4a16"), ExitCode.USAGE, "not in this version"),
        (("--precision", "w8a8"), ExitCode.USAGE, "not in this version"),
        (("--target", "pdp11"), ExitCode.TOOLCHAIN, "h100"),
        (("--camera", "top=front"), ExitCode.CHECKPOINT, "base_0_rgb"),
        (("--statistics", "your_arm"), ExitCode.CHECKPOINT, "tiny_arm"),
        (("--views", "9"), ExitCode.CHECKPOINT, "9"),
        (("--tokenizer", "none.model"), ExitCode.CHECKPOINT, "none.model"),
        (("--batch", "0"), ExitCode.USAGE, "1 or more"),
        (("--steps", "-3"), ExitCode.USAGE, "1 or more"),
    ],
)
def test_impossible_options(
    commands: Commands,
    oracles: Path,
    options: tuple[str, ...],
    code: ExitCode,
    message: str,
) -> None:
    """Case 29 (float16), case 32 (spellings), case 39 and case 40 (no quantisation), case 19,
    case 13: known names are listed."""
    outcome = commands.compile(oracles / "pi05_fp32" / "openpi", *options)
    assert outcome.code == code, outcome.text
    assert message in outcome.text


def test_output_that_is_no_bundle_is_left_alone(commands: Commands, oracles: Path) -> None:
    keep = commands.output / "thesis.txt"
    keep.parent.mkdir(parents=True)
    keep.write_text("four years of work")
    arguments = ("compile", oracles / "pi05_fp32" / "openpi", "--target", "cpu")
    outcome = commands(*arguments, "-o", commands.output)
    assert outcome.code == ExitCode.USAGE and "is not a bundle" in outcome.text
    assert keep.read_text() == "four years of work"


def test_full_disk(commands: Commands, oracles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up while the weights are written."""

    def write(path: Path, *_: object) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(bundle_writer, "write_tensors", write)
    outcome = commands.compile(oracles / "pi05_fp32" / "openpi", "--golden", "none")
    assert outcome.code == ExitCode.USAGE and "No space left" in outcome.text


@pytest.fixture
def bundle(oracles: Path, compiled: CompiledBundles, tmp_path: Path) -> Path:
    """A copy of a compiled bundle, to be damaged."""
    made = compiled(oracles / "pi05_fp32" / "openpi", prompt_slots=PROMPT_SLOTS, steps=10)
    return shutil.copytree(made, tmp_path / "made.policy")


def observation(**changes: object) -> dict[str, object]:
    picture = np.full((48, 64, 3), 99, np.uint8)
    valid: dict[str, object] = {
        "images.base_0_rgb": picture,
        "state": np.zeros(8, np.float32),
        "prompt": np.array("pick up the cup"),
    }
    return {name: value for name, value in (valid | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"images.top": np.zeros((4, 4, 3), np.uint8)}, "base_0_rgb", id="19 camera"),
        pytest.param({"state": np.zeros(7)}, "8", id="24 narrow state"),
        pytest.param({"state": np.zeros(33)}, "33", id="24 wide state"),
        pytest.param({"state": np.zeros(0)}, "8", id="24 empty state"),
        pytest.param({"state": None}, "state", id="73 no state"),
        pytest.param({"state": np.array([np.nan] * 8)}, "state", id="60 NaN"),
        pytest.param({"state": np.zeros(8, np.complex64)}, "complex64", id="30 complex state"),
        pytest.param({"prompt": None}, "prompt", id="22 no prompt"),
        pytest.param({"prompt": np.array("cup " * 99)}, "64", id="21 long prompt"),
        pytest.param({"annotation": np.array("cup")}, "annotation", id="23 other key"),
        pytest.param(
            {"images.base_0_rgb": np.zeros((3, 64, 48), np.uint8)}, "base_0_rgb", id="26 layout"
        ),
        pytest.param(
            {"images.base_0_rgb": np.zeros((9, 9, 4), np.uint8)}, "base_0_rgb", id="26 channels"
        ),
        pytest.param(
            {"images.base_0_rgb": np.zeros((0, 9, 3), np.uint8)}, "base_0_rgb", id="25 no pixels"
        ),
        pytest.param({"images.base_0_rgb": np.full((9, 9, 3), 200.0)}, "base_0_rgb", id="33 range"),
    ],
)
def test_wrong_observation(
    commands: Commands, bundle: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    """The number in the test's id is the case."""
    path, actions = tmp_path / "observation.npz", tmp_path / "actions.npz"
    np.savez(path, **observation(**changes))  # type: ignore[arg-type]
    outcome = commands("run", bundle, "--observation", path, "-o", actions, "--device", "cpu")
    assert outcome.code == ExitCode.INPUT, outcome.text
    assert message in outcome.text and not actions.exists()


def truncate(bundle: Path) -> None:
    path = bundle / "weights-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-256])


def change_weight(bundle: Path) -> None:
    path = bundle / "weights-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)


def change_graph(bundle: Path) -> None:
    path = bundle / "graph" / "1.ir"
    path.write_text(path.read_text().replace("gelu_tanh", "silu", 1))


def remove_file(bundle: Path) -> None:
    (bundle / "processing.json").unlink()


def remove_manifest(bundle: Path) -> None:
    (bundle / "manifest.json").unlink()


def later_format(bundle: Path) -> None:
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    content["format"]["version"] += 1
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "weights-00001.safetensors"),
        (change_weight, "weights-00001.safetensors"),
        (change_graph, "graph/1.ir"),
        (remove_file, "processing.json"),
        (remove_manifest, "manifest.json"),
        (later_format, "bundle format 2, this runtime reads 1 to 1"),
    ],
)
def test_damaged_bundle(
    commands: Commands, bundle: Path, damage: Callable[[Path], None], message: str
) -> None:
    """Case 69 (other format), and what verify is for."""
    damage(bundle)
    outcome = commands("verify", bundle)
    assert outcome.code == ExitCode.BUNDLE, outcome.text
    assert message in outcome.text


def test_verify_finds_changed_numbers_behind_right_digests(
    commands: Commands, bundle: Path
) -> None:
    """Weights that are wrong, though every digest fits: the golden vectors tell. Exit code 1."""
    path, manifest = bundle / "weights-00001.safetensors", bundle / "manifest.json"
    data = bytearray(path.read_bytes())
    values = np.frombuffer(data, np.float32, offset=len(data) // 8 * 4)
    values[: len(values) // 2] *= np.float32(1.5)
    path.write_bytes(data)
    content = json.loads(manifest.read_text())
    content["files"][path.name]["sha256"] = hashlib.sha256(data).hexdigest()
    manifest.write_text(json.dumps(content))
    outcome = commands("verify", bundle)
    assert outcome.code == ExitCode.CHECK_FAILED, outcome.text
