"""Each importer: the traced call computes what PyTorch computes, or stops with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from policyc.compiler.ir.graph import Rate
from policyc.compiler.ir.interpreter import Interpreter
from policyc.compiler.ir.types import DType, TensorType
from policyc.compiler.ir.verify import verify
from policyc.frontends.adapter import InputSpec, ModelSpec, StageSpec
from policyc.frontends.errors import FrontendError
from policyc.frontends.trace import trace

RANDOM = np.random.default_rng(5)
WEIGHTS = {
    name: RANDOM.standard_normal(shape).astype(np.float32)
    for name, shape in (("w", (6, 4)), ("b", (6,)), ("v", (4,)), ("t", (4,)))
}
X = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
Function = Callable[[Any, torch.Tensor], torch.Tensor]


def model(function: Function) -> ModelSpec:
    return ModelSpec(
        family="toy",
        inputs=(InputSpec(name="x", type=TensorType(DType.F32, (2, 3, 4)), rate=Rate.OBSERVATION),),
        weights={name: TensorType(DType.F32, a.shape) for name, a in WEIGHTS.items()},
        constants={},
        stages=(
            StageSpec(
                name="s",
                rate=Rate.OBSERVATION,
                function=lambda w, x: {"y": function(w, x)},
                inputs=("x",),
            ),
        ),
        outputs=("y",),
        named=(),
    )


CASES: dict[str, Function] = {
    "linear": lambda w, x: F.linear(x, w["w"]),
    "linear with bias": lambda w, x: F.linear(x, w["w"], w["b"]),
    "layer_norm": lambda w, x: F.layer_norm(x, (4,)),
    "layer_norm with scale": lambda w, x: F.layer_norm(x, (4,), w["v"]),
    "layer_norm with both": lambda w, x: F.layer_norm(x, (4,), w["v"], w["t"]),
    "layer_norm with eps": lambda w, x: F.layer_norm(x, (4,), w["v"], w["t"], 0.1),
    "rms_norm": lambda w, x: F.rms_norm(x, (4,), None, 0.1),
    "rms_norm with scale": lambda w, x: F.rms_norm(x, (4,), w["v"], 0.1),
    "gelu": lambda w, x: F.gelu(x, approximate="tanh"),
    "unary": lambda w, x: torch.sigmoid(torch.sin(x) + torch.cos(x.exp()) - torch.tanh(-F.silu(x))),
    "roots": lambda w, x: torch.sqrt(x * x + 1.0) * torch.rsqrt(x * x + 2.0),
    "scalars": lambda w, x: 2.0 + (x - 0.5) * 3.0 / 7.0,
    "binary": lambda w, x: (x + w["v"]) * w["t"] - x / (w["v"] * w["v"] + 1.0),
    "reshape": lambda w, x: x.reshape(6, 4).unsqueeze(1).flatten(0, 1).view(2, 12),
    "expand": lambda w, x: x[:, :1].expand(2, 5, 4) + 0.0,
    "slices": lambda w, x: x[:, 1:, -3:-1] + x[:, :2, 1:3],
    "whole slice": lambda w, x: x[:, 0:3] * 2.0,
    "cat": lambda w, x: torch.cat([x, x * 2.0], dim=-1),
    "permute": lambda w, x: x.permute(2, 0, -2).transpose(0, -1) + 0.0,
    "cast": lambda w, x: x.to(torch.float64).sin().to(torch.float32),
    "cast to the same": lambda w, x: x.to(torch.float32) + 1.0,
}


@pytest.mark.parametrize("name", CASES)
def test_a_call_computes_what_pytorch_computes(name: str) -> None:
    graph = trace(model(CASES[name]))
    verify(graph)
    got = Interpreter(graph, lambda weight: WEIGHTS[weight[1:]]).run({"x": X})["y"]
    tensors = {key: torch.from_numpy(array) for key, array in WEIGHTS.items()}
    expected = CASES[name](tensors, torch.from_numpy(X)).numpy()
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda w, x: F.gelu(x), "gelu with approximate='none': only 'tanh' has a row"),
        (lambda w, x: F.rms_norm(x, (4,)), "rms_norm without eps: its default depends"),
        (
            lambda w, x: torch.add(x, x, alpha=2),
            r"add with \['alpha'\]: write the factor as a prod",
        ),
        (lambda w, x: x[:, ::2] + 0.0, "slice with step 2: only 1 has a row"),
    ],
)
def test_refusals(function: Function, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        trace(model(function))
