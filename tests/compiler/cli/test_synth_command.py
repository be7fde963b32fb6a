from __future__ import annotations

from pathlib import Path

from policyc.compiler.exit_codes import ExitCode
from tests.compiler.cli.conftest import Invoke


def test_synth_writes_a_checkpoint(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("synth", "pi05", "--layout", "lerobot", "--seed", 2, "-o", tmp_path / "c")
    assert outcome.code == ExitCode.OK and "model.safetensors" in outcome.err
    assert (tmp_path / "c" / "tokenizer" / "tokenizer.json").is_file()


def test_an_existing_folder_or_unknown_size_is_code_2(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("synth", "pi05", "-o", tmp_path)
    assert outcome.code == ExitCode.USAGE and "exists" in outcome.err
    outcome = invoke("synth", "pi05", "-o", tmp_path / "c", "--size", "huge")
    assert outcome.code == ExitCode.USAGE and "full, tiny" in outcome.err
