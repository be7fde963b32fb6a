from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from policyc.backends.toolchain import Toolchain
from policyc.compiler.cli import tune_command
from policyc.compiler.exit_codes import ExitCode
from tests.backends.fixtures import pretend_compiled
from tests.compiler.cli.conftest import Invoke
from tests.compiler.tuning.cases import bundle, normalise, null_driver, problem


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The null driver in place of a GPU, and no compiler."""

    def compile_kernels(sources: dict[str, object], *rest: object) -> dict[str, object]:
        watch = rest[3]
        for name in sources:
            watch(name)  # type: ignore[operator]
        return {name: pretend_compiled(source) for name, source in sources.items()}  # type: ignore[arg-type]

    monkeypatch.setattr(tune_command, "compile_kernels", compile_kernels)
    tools = Toolchain(triton="3.9.0", ptxas={90: "13.0"})
    monkeypatch.setattr(tune_command, "check_toolchain", lambda capabilities: tools)
    monkeypatch.setattr(tune_command, "CudaDriver", lambda ordinal: null_driver(normalise))


@pytest.mark.usefixtures("no_gpu")
def test_tune_writes_a_choice_file(invoke: Invoke, tmp_path: Path) -> None:
    folder, output = bundle(tmp_path / "a.policy").folder, tmp_path / "choices.toml"
    outcome = invoke("tune", folder, "--target", "h200", "--only", "rms_norm", "-o", output)
    assert outcome.code == ExitCode.OK, outcome.err
    assert "tuned h200" in outcome.out and "1/1 rms_norm" in outcome.err
    value = tomllib.loads(output.read_text())
    assert value["target"] == "h200" and value["choice"][0]["problem"] == problem().key
    assert value["choice"][0]["how"] == "measured"


@pytest.mark.usefixtures("no_gpu")
def test_tune_without_a_winner_fails(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_command, "CudaDriver", lambda ordinal: null_driver(lambda *_: None))
    folder, output = bundle(tmp_path / "a.policy").folder, tmp_path / "choices.toml"
    outcome = invoke("tune", folder, "--target", "h200", "-o", output)
    assert outcome.code == ExitCode.CHECK_FAILED and "not written" in outcome.out
    assert "choice" not in tomllib.loads(output.read_text())


def test_mistakes_are_named(invoke: Invoke, tmp_path: Path) -> None:
    folder, output = bundle(tmp_path / "a.policy").folder, tmp_path / "c.toml"
    outcome = invoke("tune", folder, "--target", "h200")
    assert outcome.code == ExitCode.USAGE and "-o CHOICES.toml, --merge" in outcome.err
    outcome = invoke("tune", folder, "--target", "h200", "--device", "cpu", "-o", output)
    assert outcome.code == ExitCode.USAGE and "only GPUs are tuned" in outcome.err
