from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyc.backends.offers import collect_offers
from policyc.backends.views import resolve_views
from policyc.compiler.explain import NOT_RECORDED, explain_bundle
from policyc.compiler.ir.selection import Offer
from policyc.compiler.options import OptionError
from policyc.kernels.families import family_of
from policyc.passes.select_kernels import parameters_text
from policyc.profiles.loader import load_profile
from policyc.runtime_min.bundle import Bundle
from tests.compiler.tuning.cases import bundle as norm_bundle
from tests.compiler.tuning.cases import norm_graph


def offer() -> Offer:
    (only,) = collect_offers(
        resolve_views(norm_graph()).work, load_profile("h100"), family_of
    ).values()
    return only


def record(folder: Path, decision: dict[str, object]) -> Bundle:
    """The bundle with a decision about its only problem in the manifest."""
    bundle = norm_bundle(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["provenance"] = {"kernel_choices": {"90": {offer().problem.key: decision}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return Bundle.open(bundle.folder)


def test_winner_runner_up_and_cost(tmp_path: Path) -> None:
    ranked = sorted(
        (item for item in offer().candidates if not item.rejected),
        key=lambda item: (item.cost, item.parameters),
    )
    first, second, *_ = (parameters_text(item.parameters) for item in ranked)
    decision = {
        "winner": second,
        "reason": "measured 2 us",
        "microseconds": 2.0,
        "rejected": {first: "the profile's table names another"},
    }
    (row,) = explain_bundle(record(tmp_path / "a.policy", decision), None, None)
    assert (row.winner, row.runner_up) == (second, first)
    assert row.runner_up_reason == "the profile's table names another"
    assert (row.uses, row.op, row.measured_us) == (1, "rms_norm", 2.0)
    assert row.shapes == "(f32[1,3,512], f32[512]) -> f32[1,3,512]"
    assert row.bytes == 4 * (2 * 3 * 512 + 512) and row.flops == 5 * 3 * 512
    assert row.model_cost == ranked[1].cost
    assert row.roof_share == pytest.approx(row.roof_us / 2.0)


def test_a_choice_by_model_has_no_time(tmp_path: Path) -> None:
    decision = {"winner": "none", "reason": "lowest model cost", "microseconds": None}
    (row,) = explain_bundle(record(tmp_path / "a.policy", decision), "h100", 2, "rms_norm")
    assert row.measured_us is None and row.roof_share is None
    assert row.runner_up_reason == NOT_RECORDED and row.model_cost is None


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    bundle = norm_bundle(tmp_path / "a.policy")
    (row,) = explain_bundle(bundle, None, None)
    assert (row.winner, row.reason) == (NOT_RECORDED, NOT_RECORDED)
    with pytest.raises(OptionError, match="no problem contains 'conv'; there are:\n  rms_norm"):
        explain_bundle(bundle, None, None, "conv")
    with pytest.raises(OptionError, match="no target thor in .*; compiled: h100, h20"):
        explain_bundle(bundle, "thor", None)
    with pytest.raises(OptionError, match="no batch 3 in .*; compiled: 1, 2"):
        explain_bundle(bundle, None, 3)
