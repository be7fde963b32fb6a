"""Tracing: what becomes of a stage function, and what stops with which message."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from policyc.compiler.ir.graph import Rate
from policyc.compiler.ir.interpreter import Interpreter
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.text import print_graph, renumber
from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.compiler.ir.verify import verify
from policyc.frontends.adapter import (
    CarrySpec,
    InputSpec,
    LoopSpec,
    ModelSpec,
    StageSpec,
    run_reference,
)
from policyc.frontends.errors import FrontendError
from policyc.frontends.trace import trace

Results = dict[str, torch.Tensor]
X = TensorType(DType.F32, (2, 4))


def model(
    function: Callable[..., Results], kind: TensorType = X, outputs: tuple[str, ...] = ("y",)
) -> ModelSpec:
    """A model of one stage that reads `x`."""
    return ModelSpec(
        family="toy",
        inputs=(InputSpec(name="x", type=kind, rate=Rate.OBSERVATION),),
        weights={"enc.proj.weight": TensorType(DType.F32, (3, 4)), "spare": X},
        constants={"table": np.ones((2, 4), np.float32)},
        stages=(StageSpec(name="s", rate=Rate.OBSERVATION, function=function, inputs=("x",)),),
        outputs=outputs,
        named=(),
    )


def test_a_stage_becomes_nodes_with_origins_and_the_weights_it_reads() -> None:
    def stage(w: Any, x: torch.Tensor) -> Results:
        return {"y": F.silu(F.linear(x + w["table"], w["enc.proj.weight"]))}

    graph = renumber(trace(model(stage)))
    verify(graph)
    assert print_graph(graph) == (
        "input x: f32[2,4] rate=observation\n"
        "weight @enc.proj.weight: f32[3,4]\n"
        "weight @table: f32[2,4]\n"
        "output y\n\n"
        "stage s rate=observation (x: f32[2,4]) -> (y: f32[2,3]) {\n"
        "  %0: f32[2,4] = add(x, @table)\n"
        "  %1: f32[2,3] = linear(%0, @enc.proj.weight)  # enc.proj\n"
        "  y: f32[2,3] = silu(%1)  # enc.proj\n"
        "}\n"
    )


LOOP = ModelSpec(
    family="toy",
    inputs=(InputSpec(name="noise", type=X, rate=Rate.OBSERVATION),),
    weights={},
    constants={"times": np.array([[0.5], [2.0], [-1.0]], np.float32)},
    stages=(
        StageSpec(
            name="loop",
            rate=Rate.STEP,
            function=lambda w, step, x: {
                "v": (v := x * torch.ops.policyc.table_row(w["times"], step)),
                "next": x + v,
            },
            inputs=(),
            loop=LoopSpec(
                count=3,
                carries=(CarrySpec(initial="noise", inner="x", next="next", final="y"),),
                collects=(("v", "vs"),),
            ),
        ),
    ),
    outputs=("y",),
    named=("vs",),
)


def test_a_loop_runs_as_the_eager_reference_does() -> None:
    graph = renumber(trace(LOOP))
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    noise = np.arange(8, dtype=np.float32).reshape(2, 4)
    read: Callable[[str], Array] = lambda name: LOOP.constants[name.removeprefix("@")]  # noqa: E731
    expected = run_reference(LOOP, read, {"noise": noise}, torch.float32)
    values = Interpreter(graph, read).run({"noise": noise}, ("y", "vs"))
    assert np.array_equal(values["y"], expected["y"]) and np.array_equal(
        values["vs"], expected["vs"]
    )
    assert np.array_equal(values["y"], np.zeros_like(noise)) and values["vs"].shape == (3, 2, 4)


def unknown_call(w: Any, x: torch.Tensor) -> Results:
    return {"y": torch.erf(x)}


def deeper(x: torch.Tensor) -> torch.Tensor:
    return torch.erf(x)


def unknown_call_in_a_helper(w: Any, x: torch.Tensor) -> Results:
    return {"y": deeper(x) + 1.0}


@pytest.mark.parametrize(
    ("function", "named"),
    [(unknown_call, unknown_call), (unknown_call_in_a_helper, deeper)],
)
def test_a_call_without_a_row_names_the_adapter_s_line(
    function: Callable[..., Results], named: Callable[..., Any]
) -> None:
    line = inspect.getsourcelines(named)[1] + 1
    with pytest.raises(FrontendError) as caught:
        trace(model(function))
    message = str(caught.value)
    place = f"{Path(__file__).name}:{line} in {named.__name__}"
    assert message.startswith("stage s, ")
    assert f"{place}: aten.erf.default has no row in the op table" in message
    assert "aten.linear.default" in message and "policyc/frontends/trace.py" not in message


@pytest.mark.parametrize(
    "function",
    [
        lambda w, x: {"y": x},
        lambda w, x: {"y": (y := x + 1.0), "z": y},
    ],
    ids=["input", "twice"],
)
def test_a_result_must_be_a_value_of_its_own(function: Callable[..., Results]) -> None:
    with pytest.raises(FrontendError, match="stage s: result . is an input or another result"):
        trace(model(function))


def test_an_element_type_that_graphs_lack_is_refused() -> None:
    def stage(w: Any, x: torch.Tensor) -> Results:
        return {"y": x.to(torch.float16)}

    with pytest.raises(
        FrontendError, match=r"test_trace.py:\d+ in stage: aten.to.dtype yields torch.float16"
    ):
        trace(model(stage))


def test_a_call_with_several_results_is_refused() -> None:
    def stage(w: Any, x: torch.Tensor) -> Results:
        return {"y": x.chunk(2, dim=1)[0]}

    with pytest.raises(FrontendError, match="chunk"):
        trace(model(stage))


def test_an_importer_s_refusal_names_the_line_too() -> None:
    def stage(w: Any, x: torch.Tensor) -> Results:
        return {"y": F.gelu(x)}

    with pytest.raises(FrontendError, match=r"test_trace.py:\d+ in stage: gelu with approx"):
        trace(model(stage))


def test_no_path_enters_the_graph() -> None:
    def stage(w: Any, x: torch.Tensor) -> Results:
        return {"y": F.linear(x, w["enc.proj.weight"])}

    text = print_graph(trace(model(stage)))
    assert "/" not in text and ".py" not in text


def test_tracing_twice_gives_the_same_text() -> None:
    assert print_graph(trace(LOOP)) == print_graph(trace(LOOP))
