from __future__ import annotations

import json
from pathlib import Path

from policyc.compiler.exit_codes import ExitCode
from tests.compiler.cli.conftest import Invoke
from tests.compiler.tuning.cases import bundle


def test_explain_prints_tables_and_json(invoke: Invoke, tmp_path: Path) -> None:
    folder = bundle(tmp_path / "a.policy").folder
    outcome = invoke("explain", folder, "--target", "h20")
    assert outcome.code == ExitCode.OK, outcome.err
    for text in ("kernel choices, h20", "rms_norm", "no measurement"):
        assert text in outcome.out
    outcome = invoke("explain", folder, "--json")
    (row,) = json.loads(outcome.out)
    assert row["op"] == "rms_norm" and row["roof_share"] is None


def test_explain_names_what_there_is(invoke: Invoke, tmp_path: Path) -> None:
    folder = bundle(tmp_path / "a.policy").folder
    outcome = invoke("explain", folder, "--problem", "conv")
    assert outcome.code == ExitCode.USAGE and "rms_norm" in outcome.err
