from __future__ import annotations

import json
from pathlib import Path

from policyc.compiler.exit_codes import ExitCode
from policyc.compiler.ir.tensor_file import TensorFile
from tests.compiler.cli.conftest import Invoke
from tests.runtime_min.bundles import replace_file


def test_a_sound_bundle_passes(invoke: Invoke, robot_bundle: Path) -> None:
    outcome = invoke("verify", robot_bundle)
    assert outcome.code == ExitCode.OK and ": ok (cpu" in outcome.out
    assert "FAILED" not in outcome.out and "actions" in outcome.out


def test_a_wrong_value_fails_with_code_1(invoke: Invoke, robot_bundle: Path) -> None:
    path = robot_bundle / "weights-00001.safetensors"
    begin = TensorFile.open(path).entries["w"].begin
    data = bytearray(path.read_bytes())
    data[begin : begin + 4] = b"\x00\x00\x80\x3f"
    replace_file(robot_bundle, path.name, bytes(data))
    outcome = invoke("verify", robot_bundle, "--json")
    assert outcome.code == ExitCode.CHECK_FAILED
    value = json.loads(outcome.out)
    assert value["passed"] is False
    assert {row["name"]: row["passed"] for row in value["comparisons"]} == {
        "lang_emb": True,
        "hidden": False,
        "actions": False,
    }


def test_structure_alone_computes_nothing(invoke: Invoke, robot_bundle: Path) -> None:
    outcome = invoke("verify", robot_bundle, "--structure-only", "--json")
    value = json.loads(outcome.out)
    assert outcome.code == ExitCode.OK and value["device"] is None and value["comparisons"] == []


def test_a_flipped_byte_is_found_in_either_mode(invoke: Invoke, robot_bundle: Path) -> None:
    path = robot_bundle / "weights-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for option in ((), ("--structure-only",)):
        outcome = invoke("verify", robot_bundle, *option)
        assert outcome.code == ExitCode.BUNDLE and path.name in outcome.err


def test_a_missing_device_is_code_6(invoke: Invoke, robot_bundle: Path) -> None:
    outcome = invoke("verify", robot_bundle, "--device", "cuda:99")
    assert outcome.code == ExitCode.DEVICE and "cuda:99" in outcome.err
