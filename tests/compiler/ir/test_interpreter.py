"""The numpy interpreter: loops, what it returns, what it keeps, what it refuses."""

from __future__ import annotations

import weakref

import ml_dtypes
import numpy as np
import pytest

from policyc.compiler.ir.errors import InterpretError
from policyc.compiler.ir.interpreter import Interpreter
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.types import Array
from tests.compiler.ir.texts import SOLVER, TWO_RESULTS

RANDOM = np.random.default_rng(3)
WEIGHTS = {
    "@w": RANDOM.standard_normal((4, 4)).astype(np.float32),
    "@table": RANDOM.standard_normal((3, 4)).astype(np.float32),
}
INPUTS = {name: RANDOM.standard_normal((2, 4)).astype(np.float32) for name in ("x", "noise")}


def expected_states() -> Array:
    product = INPUTS["x"] @ WEIGHTS["@w"].T
    encoded = product / (1 + np.exp(-product))
    state, states = INPUTS["noise"], []
    for row in WEIGHTS["@table"]:
        state = state + encoded * row
        states.append(state)
    return np.stack(states)


def test_a_loop_carries_and_collects() -> None:
    values = Interpreter(parse_graph(SOLVER), WEIGHTS.__getitem__).run(
        INPUTS, ("actions", "states", "seen")
    )
    states = expected_states()
    assert np.allclose(values["states"], states, rtol=1e-6)
    assert np.array_equal(values["actions"], values["states"][-1])
    assert np.array_equal(values["seen"], values["states"].transpose(1, 0, 2))


def test_without_a_wish_the_outputs_come_and_the_report_does_not_run() -> None:
    seen: list[str] = []
    graph = parse_graph(SOLVER)
    interpreter = Interpreter(graph, WEIGHTS.__getitem__, lambda name, _: seen.append(name))
    assert list(interpreter.run(INPUTS)) == ["actions"]
    assert seen == ["%0", *("%3", "%4", "%5") * 3]


def test_an_input_and_an_inner_value_can_be_wanted() -> None:
    values = Interpreter(parse_graph(SOLVER), WEIGHTS.__getitem__).run(INPUTS, ("noise", "%0"))
    assert values["noise"] is INPUTS["noise"] and values["%0"].shape == (2, 4)


def test_results_are_rounded_to_their_types() -> None:
    inputs = {"b": INPUTS["x"], "r": INPUTS["noise"]}
    values = Interpreter(parse_graph(TWO_RESULTS), WEIGHTS.__getitem__).run(inputs)
    total = inputs["b"] + inputs["r"]
    normed = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6)
    assert values["s"].dtype == np.float32 and values["n"].dtype == ml_dtypes.bfloat16
    assert np.array_equal(values["n"], normed.astype(ml_dtypes.bfloat16))


CHAIN = """\
input x: f32[8] rate=observation
output y

stage first rate=observation (x: f32[8]) -> (%2: f32[8]) {
  %0: f32[8] = neg(x)
  %1: f32[8] = exp(%0)
  %2: f32[8] = neg(%1)
}

stage second rate=step (%2: f32[8], x: f32[8]) -> (y: f32[8]) {
  %3: f32[8] = add(%2, x)
  %4: f32[8] = sin(%3)
  y: f32[8] = add(%4, %3)
}
"""


def test_values_are_let_go_after_their_last_reader() -> None:
    alive: dict[str, weakref.ref[Array]] = {}
    most: list[int] = []

    def observe(name: str, array: Array) -> None:
        alive[name] = weakref.ref(array)
        most.append(sum(reference() is not None for reference in alive.values()))

    graph = parse_graph(CHAIN)
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    values = Interpreter(graph, WEIGHTS.__getitem__, observe).run({"x": x})
    assert max(most) <= 3, most  # the result, the operand that it was made of, and %3 for later
    total = -np.exp(-x) + x
    assert np.array_equal(values["y"], np.sin(total) + total)
    kept = {name for name, reference in alive.items() if reference() is not None}
    assert kept <= {"y"}


def test_run_stage_keeps_every_value() -> None:
    graph = parse_graph(CHAIN)
    values: dict[str, Array] = {"x": np.ones(8, np.float32)}
    Interpreter(graph, WEIGHTS.__getitem__).run_stage(graph.stages[0], values)
    assert set(values) == {"x", "%0", "%1", "%2"}


@pytest.mark.parametrize(
    ("array", "got"),
    [
        (np.zeros((2, 5), np.float32), r"float32\[2,5\]"),
        (np.zeros((2, 4), np.float64), r"float64\[2,4\]"),
        (np.zeros((2, 4), np.float16), r"float16\[2,4\]"),
    ],
)
def test_an_input_of_another_type_is_refused(array: Array, got: str) -> None:
    with pytest.raises(InterpretError, match=rf"input x is {got}, expected f32\[2,4\]"):
        Interpreter(parse_graph(SOLVER), WEIGHTS.__getitem__).run(INPUTS | {"x": array})


@pytest.mark.parametrize("missing", ["x", "noise"])
def test_a_missing_input_is_refused(missing: str) -> None:
    inputs = {name: array for name, array in INPUTS.items() if name != missing}
    with pytest.raises(InterpretError, match=f"value {missing} is read before anything gave it"):
        Interpreter(parse_graph(SOLVER), WEIGHTS.__getitem__).run(inputs)


def test_an_unknown_wish_is_refused() -> None:
    with pytest.raises(InterpretError, match=r"no value \['velocity'\]; the graph yields"):
        Interpreter(parse_graph(SOLVER), WEIGHTS.__getitem__).run(INPUTS, ("velocity",))
