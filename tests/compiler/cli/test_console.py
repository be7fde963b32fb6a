from __future__ import annotations

import json

import pytest

from policyc.compiler.cli.console import print_json, print_result, progress
from policyc.compiler.events import Event


def test_progress_goes_to_stderr_and_results_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("compiling") as report:
        report(Event(kind="pass", text="fuse_norms [a]", seconds=0.25))
        report(Event(kind="note", text="2 cameras"))
    print_result("done [b]")
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["    pass  fuse_norms [a]  0.25 s", "    note  2 cameras"]
    assert captured.out.startswith("done")


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": [1], "a": "ü"})
    assert json.loads(capsys.readouterr().out) == {"a": "ü", "b": [1]}
    with pytest.raises(ValueError, match="Out of range"):
        print_json(float("nan"))
