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


def test_bench_of_a_batch_says_who_waits(invoke: Invoke, robot_bundle: Path) -> None:
    few = ("--device", "cpu", "-n", 2, "--warmup", 1)
    outcome = invoke("bench", robot_bundle, *few, "--batch", 2, "--prompt-valid", 5)
    assert outcome.code == ExitCode.OK, outcome.err
    for text in ("infer_batch", "samples/s", "what each robot waits", "5 valid of 64"):
        assert text in outcome.out


def test_bench_refuses_what_makes_no_sense(invoke: Invoke, robot_bundle: Path) -> None:
    few = ("--device", "cpu", "-n", 2, "--warmup", 1)
    outcome = invoke("bench", robot_bundle, *few, "--plot", "a.png")
    assert outcome.code == ExitCode.USAGE and "add --roofline" in outcome.err
    outcome = invoke("bench", robot_bundle, *few, "--launches")
    assert outcome.code == ExitCode.INPUT and "measured on a GPU" in outcome.err
