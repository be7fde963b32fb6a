from __future__ import annotations

import pytest

from policyc import __version__
from policyc.compiler.cli import app
from policyc.compiler.exit_codes import ExitCode
from tests.compiler.cli.conftest import Invoke


def test_help_lists_every_command(invoke: Invoke) -> None:
    outcome = invoke("--help")
    assert outcome.code == ExitCode.OK
    for name in ("compile", "inspect", "verify", "run", "bench", "synth", "targets", "models"):
        assert name in outcome.out


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").out == f"policyc {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense",), "nonsense"),
        (("compile", "x", "-o", "y"), "--target"),
        (("compile", "--target", "cpu", "-o", "y"), "checkpoint"),
        (("compile", "x", "--target", "cpu", "-o", "y", "--steps", "many"), "--steps"),
        (("bench", "x", "-n", "0"), "--calls"),
    ],
)
def test_wrong_usage_is_code_2(invoke: Invoke, arguments: tuple[str, ...], message: str) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == ExitCode.USAGE and message in outcome.err


def test_a_bug_shows_its_traceback_and_where_to_report_it(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("lost the thread")

    monkeypatch.setattr(app, "models", broken)
    outcome = invoke("models")
    assert outcome.code == ExitCode.INTERNAL
    assert "Traceback" in outcome.err and "lost the thread" in outcome.err
    assert "bug in policyc" in outcome.err and "exit-codes.md" in outcome.err


def test_a_missing_extra_says_what_to_install(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_torch() -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(app, "models", without_torch)
    outcome = invoke("models")
    assert outcome.code == ExitCode.TOOLCHAIN
    assert 'pip install "policyc[compiler]"' in outcome.err


def test_an_interrupt_is_code_130(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "models", interrupted)
    assert invoke("models").code == ExitCode.INTERRUPTED
