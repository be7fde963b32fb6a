from __future__ import annotations

from policyc.compiler.tuning.problems import tuning_problems
from tests.compiler.tuning.cases import PROFILE, norm_graph, problem


def test_equal_problems_of_all_graphs_are_one() -> None:
    (only,) = tuning_problems([norm_graph(), norm_graph()], PROFILE)
    assert (only.key, only.uses) == (problem().key, 2)
    assert only.weight == 2 * problem().weight > 0
    assert all(not candidate.rejected for candidate in only.candidates)


def test_problems_are_picked_by_text() -> None:
    assert tuning_problems([norm_graph()], PROFILE, "attention") == ()
    assert len(tuning_problems([norm_graph()], PROFILE, "rms_norm")) == 1
