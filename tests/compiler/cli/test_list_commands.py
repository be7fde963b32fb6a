from __future__ import annotations

import json

from policyc.compiler.exit_codes import ExitCode
from policyc.profiles.loader import known_targets
from tests.compiler.cli.conftest import Invoke


def test_targets_lists_the_profiles_and_the_cpu(invoke: Invoke) -> None:
    outcome = invoke("targets")
    assert outcome.code == ExitCode.OK
    rows = json.loads(invoke("targets", "--json").out)
    assert [row["name"] for row in rows] == ["cpu", *known_targets()]
    assert all(row["name"] in outcome.out for row in rows)
    h100 = next(row for row in rows if row["name"] == "h100")
    assert h100["compute_capability"] == "9.0" and h100["sm_count"] == 132


def test_models_lists_families(invoke: Invoke) -> None:
    assert "pi05" in invoke("models").out
    (row,) = json.loads(invoke("models", "--json").out)
    assert row["layouts"] == ["openpi", "lerobot"]
