"""The order on the device, and what the host reads afterwards."""

from __future__ import annotations

import pytest

from policyc.compiler.ir.errors import VerifyError
from policyc.compiler.ir.graph import Loop, Rate, Stage
from policyc.compiler.ir.sequence import device_sequence, host_reads
from policyc.compiler.ir.types import DType
from tests.passes.graphs import graph, toy_graph, value


def test_report_stage_is_not_on_the_device() -> None:
    names = [(item.stage.name, item.name) for item in device_sequence(toy_graph())]
    assert names == [
        ("observe", "qkv"),
        ("observe", "%0"),
        ("observe", "%1"),
        ("observe", "v"),
        ("step", "sum"),
        ("step", "%4"),
        ("step", "actions"),
    ]


def test_host_reads_outputs_and_what_the_report_reads() -> None:
    assert host_reads(toy_graph()) == ("actions", "sum")


def test_loop_is_refused() -> None:
    loop = Loop(count=3, index=value("%i", DType.I32))
    stage = Stage(name="denoise", rate=Rate.STEP, nodes=(), loop=loop)
    with pytest.raises(VerifyError, match="a loop of 3 steps; .* Run unroll_solver first"):
        device_sequence(graph((), (), (stage,), ()))
