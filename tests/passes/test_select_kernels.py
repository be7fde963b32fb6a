"""Kernel selection: who wins, why, and what each loser is told."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from policyc.compiler.ir.selection import Candidate, Offer, Problem, Rejection
from policyc.passes.select_kernels import SelectionError, select_kernels
from policyc.profiles.profile import Choice
from tests.passes.graphs import toy_graph

SMALL, LARGE, HUGE = (("block", 16),), (("block", 64),), (("block", 512),)
CANDIDATES = (
    Candidate(
        parameters=HUGE, cost=1.0, rejected="needs 300000 bytes of shared memory, it has 100"
    ),
    Candidate(parameters=LARGE, cost=2.0),
    Candidate(parameters=SMALL, cost=3.0),
)
KEY = "linear m=16"
MEASURED = Choice(
    problem=KEY,
    parameters=SMALL,
    how="measured",
    microseconds=4.25,
    spread=0.01,
    date=datetime.date(2025, 3, 1),
    driver="580",
    clocks="locked",
)


def offers(candidates: tuple[Candidate, ...] = CANDIDATES) -> dict[str, Offer]:
    def offer(key: str, offered: tuple[Candidate, ...]) -> Offer:
        return Offer(problem=Problem(op=key.split()[0], key=key), candidates=offered)

    only = (Candidate(parameters=SMALL, cost=1.0),)
    linear = offer(KEY, candidates)
    return {
        "qkv": linear,
        "%0": offer("rms_norm d=64", only),
        "%1": linear,
        "sum": offer("add_norm d=64", only),
        "%4": linear,
        "actions": linear,
    }


def test_cost_decides_without_a_choice() -> None:
    selection = select_kernels(toy_graph(), offers(), {})
    decision = selection.decisions[KEY]
    assert decision.parameters == LARGE
    assert decision.reason == "lowest model cost 2 of 2; nothing was measured"
    assert decision.microseconds is None
    assert decision.uses == 4
    assert decision.rejected == (
        Rejection(parameters=HUGE, reason="needs 300000 bytes of shared memory, it has 100"),
        Rejection(parameters=SMALL, reason="model cost 3, the winner's is 2"),
    )
    assert selection.decisions["rms_norm d=64"].reason == "only candidate"
    assert selection.parameters_of("actions") == LARGE
    assert list(selection.decisions) == [KEY, "rms_norm d=64", "add_norm d=64"]


def test_measured_choice_wins_over_cost() -> None:
    decision = select_kernels(toy_graph(), offers(), {KEY: MEASURED}).decisions[KEY]
    assert decision.parameters == SMALL
    assert decision.microseconds == 4.25
    assert decision.reason == (
        "measured 4.25 us (spread 0.01) on 2025-03-01, driver 580, clocks locked"
    )
    assert decision.rejected[1].reason == "the profile's table names another"


def test_borrowed_choice_is_never_shown_as_measured() -> None:
    borrowed = Choice(problem=KEY, parameters=SMALL, how="model", measured_on="h200")
    decision = select_kernels(toy_graph(), offers(), {KEY: borrowed}).decisions[KEY]
    assert (decision.parameters, decision.microseconds) == (SMALL, None)
    assert decision.reason == "model: won on h200, not measured here"


def test_borrowed_choice_that_is_not_offered_gives_way() -> None:
    borrowed = Choice(problem=KEY, parameters=HUGE, how="model", measured_on="h200")
    decision = select_kernels(toy_graph(), offers(), {KEY: borrowed}).decisions[KEY]
    assert decision.parameters == LARGE
    assert decision.reason.endswith("the profile's choice block=512 is not offered here")


def test_predicted_time_is_not_a_measurement() -> None:
    model = Choice(problem=KEY, parameters=SMALL, how="model", microseconds=1.0)
    assert select_kernels(toy_graph(), offers(), {KEY: model}).decisions[KEY].microseconds is None


def test_measured_choice_that_is_not_offered_stops() -> None:
    with pytest.raises(SelectionError, match="choice block=512 is not among the candidates"):
        select_kernels(toy_graph(), offers(), {KEY: replace(MEASURED, parameters=HUGE)})


def test_ties_go_to_the_smaller_parameters() -> None:
    tied = (Candidate(parameters=LARGE, cost=1.0), Candidate(parameters=SMALL, cost=1.0))
    decision = select_kernels(toy_graph(), offers(tied), {}).decisions[KEY]
    assert decision.parameters == SMALL
    assert decision.rejected[0].reason == "same model cost 1, later in order of parameters"


def test_no_admissible_candidate_stops_with_all_reasons() -> None:
    none = tuple(replace(item, rejected=f"no {item.parameters[0][1]}") for item in CANDIDATES)
    with pytest.raises(SelectionError) as raised:
        select_kernels(toy_graph(), offers(none), {})
    text = str(raised.value)
    assert text.startswith("stage observe, qkv linear: no kernel can run 'linear m=16'")
    assert all(f"block={size}: no {size}" in text for size in (16, 64, 512))


def test_node_without_an_offer_stops_but_views_need_none() -> None:
    missing = offers()
    del missing["sum"]
    with pytest.raises(SelectionError, match="stage step, sum add_norm: no kernel family serves"):
        select_kernels(toy_graph(), missing, {})
