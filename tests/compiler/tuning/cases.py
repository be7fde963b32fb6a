"""A norm to tune on the null driver, and its kernel in Python."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from policyc.backends.kernel_cache import CompiledKernel
from policyc.backends.source import KernelSource
from policyc.compiler.events import Event
from policyc.compiler.ir.attributes import NormAttributes
from policyc.compiler.ir.graph import Graph, Input, Node, Rate, Stage, Value
from policyc.compiler.ir.text import print_graph
from policyc.compiler.ir.types import DType, TensorType
from policyc.compiler.tune import Tuner
from policyc.compiler.tuning.problems import TuningProblem, tuning_problems
from policyc.profiles.loader import load_profile
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.driver_interface import KernelLaunch
from policyc.runtime_min.null_driver import EmulatedKernel, NullDriver, null_facts
from tests.backends.fixtures import pretend_compiled
from tests.runtime_min.bundles import replace_file, write_bundle

ROWS, WIDTH, EPS = 3, 512, 1e-6
PROFILE = replace(load_profile("h200"), l2_bytes=4096)
"""A small cache needs few copies of the weights, which keeps the null driver quick."""
DATE = datetime.date(2026, 1, 31)
F32 = DType.F32


def value(name: str, dtype: DType, *shape: int) -> Value:
    return Value(name=name, type=TensorType(dtype, shape))


def graph_of(*nodes: Node, inputs: tuple[Value, ...], weights: tuple[Value, ...] = ()) -> Graph:
    return Graph(
        inputs=tuple(Input(value=item, rate=Rate.OBSERVATION) for item in inputs),
        weights=weights,
        stages=(Stage(name="only", rate=Rate.STEP, nodes=nodes),),
        outputs=(nodes[-1].outputs[0].name,),
    )


def norm_graph() -> Graph:
    """y = rms_norm(x) * scale in float32."""
    node = Node(
        op="rms_norm",
        inputs=("x", "@scale"),
        outputs=(value("y", F32, 1, ROWS, WIDTH),),
        attrs=NormAttributes(eps=EPS, scale=True),
    )
    weights = (value("@scale", F32, WIDTH),)
    return graph_of(node, inputs=(value("x", F32, 1, ROWS, WIDTH),), weights=weights)


def problem() -> TuningProblem:
    (only,) = tuning_problems([norm_graph()], PROFILE)
    return only


def bundle(folder: Path) -> Bundle:
    """A bundle with the norm as its graphs; its plan and kernels are never looked at."""
    write_bundle(folder)
    for batch in (1, 2):
        replace_file(folder, f"graph/{batch}.ir", print_graph(norm_graph()).encode())
    return Bundle.open(folder)


def normalise(driver: NullDriver, launch: KernelLaunch) -> None:
    """The kernel `norm_rows` on the norm's operands."""
    x, scale, y = (
        driver.memory(address, count * 4).view(np.float32)
        for address, count in zip(launch.pointers, (ROWS * WIDTH, WIDTH, ROWS * WIDTH), strict=True)
    )
    rows = x.reshape(ROWS, WIDTH)
    inverse = 1 / np.sqrt((rows * rows).mean(axis=1, keepdims=True) + np.float32(EPS))
    y[:] = (rows * inverse * scale).ravel()


def null_driver(kernel: EmulatedKernel = normalise, capability: int = 90) -> NullDriver:
    return NullDriver(null_facts(capability, 13000), {"norm_rows": kernel}, launch_us=2000.0)


def pretend(sources: Mapping[str, KernelSource]) -> Mapping[str, CompiledKernel | str]:
    return {name: pretend_compiled(source) for name, source in sources.items()}


def tuner(
    open_driver: Callable[[], NullDriver],
    told: list[Event],
    compile: Callable[[Mapping[str, KernelSource]], Mapping[str, CompiledKernel | str]] = pretend,
    seconds: float = 60.0,
) -> Tuner:
    return Tuner(
        profile=PROFILE,
        open_driver=open_driver,
        compile=compile,
        facts=lambda: ("580.1", "sm 1980 MHz"),
        report=told.append,
        seconds=seconds,
        today=DATE,
    )
