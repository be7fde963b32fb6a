from __future__ import annotations

import json
from pathlib import Path

from policyc.compiler.exit_codes import ExitCode
from tests.compiler.cli.conftest import Invoke


def test_bench_prints_and_stores_a_receipt(
    invoke: Invoke, robot_bundle: Path, observation_file: Path, tmp_path: Path
) -> None:
    receipt = tmp_path / "receipt.json"
    outcome = invoke(
        *("bench", robot_bundle, "--device", "cpu", "-n", 5, "--warmup", 1, "--load", "--json"),
        *("--observation", observation_file, "--receipt", receipt),
    )
    assert outcome.code == ExitCode.OK, outcome.err
    value = json.loads(outcome.out)
    assert value == json.loads(receipt.read_text())
    assert [timing["boundary"] for timing in value["timings"]] == ["run", "infer"]
    assert value["load"]["first_call_s"] > 0


def test_bench_prints_tables(invoke: Invoke, robot_bundle: Path) -> None:
    outcome = invoke("bench", robot_bundle, "--device", "cpu", "-n", 2, "--warmup", 1)
    assert outcome.code == ExitCode.OK
    for text in ("p99", "infer", "valid of 64 slots", "unknown"):
        assert text in outcome.out
