from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from policyc.compiler.events import Event, Report
from policyc.compiler.exit_codes import ExitCode
from policyc.compiler.options import CompileOptions, Golden, Precision, Rope
from tests.compiler.cli.conftest import Invoke
from tests.runtime_min.bundles import write_bundle


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[CompileOptions]:
    """Options that the compiler was called with; in its place the small bundle is written."""
    calls: list[CompileOptions] = []

    def compile_checkpoint(options: CompileOptions, report: Report) -> None:
        calls.append(options)
        report(Event(kind="pass", text="fuse_norms", seconds=0.5))
        write_bundle(options.output)

    module = ModuleType("policyc.compiler.compile")
    module.compile_checkpoint = compile_checkpoint  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "policyc.compiler.compile", module)
    return calls


def test_every_option_arrives(
    invoke: Invoke, compiled: list[CompileOptions], tmp_path: Path
) -> None:
    output = tmp_path / "a.policy"
    outcome = invoke(
        *("compile", "folder", "--target", "h100", "--target", "cpu", "-o", output),
        *("--precision", "float", "--steps", 5, "--views", 2, "--prompt-slots", 48),
        *("--batch", 2, "--batch", 1, "--statistics", "trossen", "--rope", "rounded"),
        *("--horizon", 15, "--no-state-in-prompt", "--camera", "top=base_0_rgb"),
        *("--default-prompt", "fold", "--tokenizer", "t.model", "--cache", "c", "--dump", "d"),
        *("--golden", "none"),
    )
    assert outcome.code == ExitCode.OK, outcome.err
    assert compiled == [
        CompileOptions(
            checkpoint=Path("folder"), output=output, targets=("h100", "cpu"),
            precision=Precision.FLOAT32, steps=5, views=2, prompt_slots=48, horizon=15,
            batch=(1, 2), statistics="trossen", rope=Rope.ROUNDED, state_in_prompt=False,
            cameras=(("top", "base_0_rgb"),), default_prompt="fold", tokenizer=Path("t.model"),
            cache=Path("c"), dump=Path("d"), golden=Golden.NONE,
        )
    ]  # fmt: skip
    assert "fuse_norms" in outcome.err and "toy" in outcome.out


def test_defaults_and_json(invoke: Invoke, compiled: list[CompileOptions], tmp_path: Path) -> None:
    outcome = invoke("compile", "f", "--target", "cpu", "-o", tmp_path / "a.policy", "--json")
    (options,) = compiled
    assert options == CompileOptions(
        checkpoint=Path("f"), output=tmp_path / "a.policy", targets=("cpu",)
    )
    assert json.loads(outcome.out)["policy"] == "toy"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--precision", "int7"), "unknown precision 'int7'"),
        (("--precision", "w8a16"), "not in this version"),
        (("--camera", "top"), "ROBOT_NAME=CHECKPOINT_SLOT"),
        (("--batch", "0"), "1 or more"),
    ],
)
def test_nonsense_stops_before_compiling(
    invoke: Invoke,
    compiled: list[CompileOptions],
    tmp_path: Path,
    option: tuple[str, str],
    message: str,
) -> None:
    outcome = invoke("compile", "f", "--target", "cpu", "-o", tmp_path / "a.policy", *option)
    assert outcome.code == ExitCode.USAGE and message in outcome.err and not compiled
