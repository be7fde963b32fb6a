from __future__ import annotations

import pytest

from policyc.compiler.tuning.timing import Timed, choose, time_candidates
from policyc.runtime_min.graph_timing import capture_graph
from policyc.runtime_min.null_driver import NullDriver, null_facts
from tests.runtime_min.test_graph_timing import launch


def timed(name: int, microseconds: float, spread: float = 0.0) -> Timed:
    return Timed(parameters=(("p", name),), microseconds=microseconds, spread=spread)


@pytest.mark.parametrize(
    ("candidates", "winner"),
    [
        ((timed(2, 10.0), timed(1, 10.19)), 1),  # within 2 %: smaller parameters
        ((timed(2, 10.0), timed(1, 10.21)), 2),
        ((timed(2, 10.0, 0.04), timed(1, 10.39)), 1),  # within the spread
        ((timed(2, 10.0, 0.30), timed(1, 10.6)), 2),  # a wild spread widens it to 5 % only
        ((timed(3, 10.2), timed(2, 10.1), timed(1, 10.0)), 1),
    ],
)
def test_the_rule_of_choice(candidates: tuple[Timed, ...], winner: int) -> None:
    assert choose(candidates).parameters == (("p", winner),)
    assert choose(candidates[::-1]).parameters == (("p", winner),)


def test_only_candidates_near_the_best_are_timed_with_care() -> None:
    driver = NullDriver(null_facts(90, 13000), launch_us=3.0)
    with driver.current():
        module = driver.load_module(b"code", "a.cubin")
        function = driver.function(module, "entry", 0)
        graphs = {
            (("p", count),): capture_graph(driver, [launch(function)] * count)
            for count in (8, 9, 20)
        }
        finalists, first = time_candidates(driver, graphs, 4)
    assert first == {(("p", 8),): 6.0, (("p", 9),): 6.75, (("p", 20),): 15.0}
    assert finalists == (timed(8, 6.0), timed(9, 6.75))
