"""Pass cases: a text file with a graph before and after a pass, and what must hold of any pass.

    # What the case shows.
    options: dtype=bf16 keep=action_in_proj,action_out_proj
    tolerance: 1e-6
    named: rounded
    --- before
    (graph text)
    --- after
    (graph text, or `same object`)

`options` are fields of the pass's options. `tolerance` is relative to the largest value of each
result, and absent where the pass is exact. `named: rounded` lets named values change element type.
`UPDATE_GOLDEN=1` rewrites the part after `--- after`.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from policyc.compiler.ir.graph import Graph, value_types
from policyc.compiler.ir.interpreter import Interpreter
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.text import print_graph, renumber
from policyc.compiler.ir.types import Array, DType, TensorType
from policyc.compiler.ir.verify import verify

CASES = Path(__file__).parent / "cases"
SAME = "same object\n"
MOST_LINES = 60
BEFORE, AFTER = "--- before\n", "--- after\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCase:
    """One file, read."""

    path: Path
    head: str
    before: str
    after: str

    @property
    def pass_name(self) -> str:
        return self.path.parent.name

    def setting(self, name: str) -> str:
        """The value of a line `name: value` of the head; empty if there is none."""
        for line in self.head.splitlines():
            if line.startswith(f"{name}: "):
                return line.removeprefix(f"{name}: ")
        return ""


def read_case(path: Path) -> PassCase:
    head, _, rest = path.read_text().partition(BEFORE)
    before, mark, after = rest.partition(AFTER)
    assert head.startswith("# ") and mark, f"{path}: expected `# ..`, `{BEFORE}`, `{AFTER}`"
    return PassCase(path=path, head=head, before=before, after=after)


def pass_function(name: str) -> Callable[..., Graph]:
    function: Callable[..., Graph] = getattr(import_module(f"policyc.passes.{name}"), name)
    return function


def bound_pass(case: PassCase) -> Callable[[Graph], Graph]:
    """The pass with the case's options."""
    function = pass_function(case.pass_name)
    given = case.setting("options")
    if not given:
        return function
    options_type = type(inspect.signature(function).parameters["options"].default)
    hints = typing.get_type_hints(options_type)
    pairs = (item.split("=") for item in given.split())
    options = options_type(**{name: _option(hints[name], text) for name, text in pairs})
    assert dataclasses.is_dataclass(options)
    return lambda graph: function(graph, options)


def _option(hint: object, text: str) -> object:
    if hint is DType:
        return DType(text)
    if hint is int:
        return int(text)
    assert hint == tuple[str, ...], f"no text form for options of type {hint}"
    return tuple(text.split(","))


def check_case(case: PassCase, update: bool) -> None:
    """Everything that must hold of the pass and the case; raises AssertionError."""
    assert case.before.count("\n") <= MOST_LINES, f"{case.path}: too long to be read"
    run = bound_pass(case)
    graph = parse_graph(case.before)
    verify(graph)
    assert print_graph(renumber(graph)) == case.before, "the text before is not in printed form"
    result = run(graph)
    text = SAME if result is graph else print_graph(renumber(result))
    if update:
        case.path.write_text(f"{case.head}{BEFORE}{case.before}{AFTER}{text}")
    else:
        assert text == case.after, f"{case.path}: got\n{text}"
    assert text.count("\n") <= MOST_LINES, f"{case.path}: too long to be read"
    if result is graph:
        return
    result = renumber(result)
    verify(result, case.pass_name)
    assert parse_graph(text) == result
    exact = case.setting("named") != "rounded"
    assert interface(result, exact) == interface(graph, exact)
    assert run(result) is result, f"{case.path}: a second run changes the graph"
    assert_same_values(graph, result, float(case.setting("tolerance") or 0))


def interface(graph: Graph, exact: bool) -> object:
    """Inputs, outputs and named values with their types; of named ones the shape if not exact."""
    types = value_types(graph)
    return (
        graph.inputs,
        {name: types[name] for name in graph.outputs},
        {name: types[name] if exact else types[name].shape for name in graph.named},
    )


def assert_same_values(before: Graph, after: Graph, tolerance: float) -> None:
    """The interpreter agrees on every output and named value, within the relative tolerance."""
    weights = {weight.name: weight.type for weight in before.weights}
    inputs = {item.value.name: sample(item.value.name, item.value.type) for item in before.inputs}
    wanted = (*before.outputs, *before.named)

    def read(name: str) -> Array:
        return sample(name, weights[name])

    expected = Interpreter(before, read).run(inputs, wanted)
    got = Interpreter(after, read).run(inputs, wanted)
    for name in wanted:
        wide, ours = expected[name].astype(np.float64), got[name].astype(np.float64)
        limit = tolerance * np.abs(wide).max(initial=0.0)
        error = np.abs(ours - wide).max(initial=0.0)
        assert error <= limit, f"{name} moves by {error}, the case allows {limit}"
        assert np.isfinite(wide).all() and np.unique(wide).size > min(1, wide.size - 1), (
            f"{name} shows nothing"
        )


def sample(name: str, kind: TensorType) -> Array:
    """Random values that depend on the name and type alone; integers lie in 0..3."""
    random = np.random.default_rng(zlib.crc32(f"{name} {kind}".encode()))
    if kind.dtype is DType.BOOL:
        mask: Array = random.random(kind.shape) < 0.6
        return mask
    if not kind.dtype.is_float:
        return random.integers(0, 4, kind.shape).astype(kind.dtype.numpy)
    return random.standard_normal(kind.shape).astype(kind.dtype.numpy)
