from __future__ import annotations

import json
from pathlib import Path

from policyc.compiler.exit_codes import ExitCode
from policyc.compiler.ir.parser import parse_graph
from tests.compiler.cli.conftest import Invoke
from tests.runtime_min.bundles import graph


def test_inspect_prints_what_the_bundle_is(invoke: Invoke, robot_bundle: Path) -> None:
    outcome = invoke("inspect", robot_bundle, "--launches")
    assert outcome.code == ExitCode.OK
    for text in ("toy", "h100 (9.0)", "front, wrist", "x, y", "linear", "tests.linear"):
        assert text in outcome.out


def test_inspect_prints_json(invoke: Invoke, robot_bundle: Path) -> None:
    value = json.loads(invoke("inspect", robot_bundle, "--json").out)
    assert value["targets"] == {"h100": "9.0", "h20": "9.0"}
    assert [plan["batch"] for plan in value["plans"]] == [1, 2]


def test_inspect_prints_the_graph_of_a_batch(invoke: Invoke, robot_bundle: Path) -> None:
    assert parse_graph(invoke("inspect", robot_bundle, "--graph", "--batch", 2).out) == graph(2)


def test_an_unknown_batch_lists_the_known(invoke: Invoke, robot_bundle: Path) -> None:
    outcome = invoke("inspect", robot_bundle, "--batch", 7)
    assert outcome.code == ExitCode.USAGE and "compiled: 1, 2" in outcome.err


def test_a_folder_that_is_no_bundle(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("inspect", tmp_path)
    assert outcome.code == ExitCode.BUNDLE and "manifest.json" in outcome.err
