"""The parser: the inverse of the printer, and unimpressed by hostile text."""

from __future__ import annotations

import contextlib
import random
import time

import pytest
from hypothesis import given, settings

from policyc.compiler.ir import parser
from policyc.compiler.ir.errors import ParseError
from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.parser import parse_graph
from policyc.compiler.ir.text import print_graph, renumber
from policyc.compiler.ir.verify import verify
from tests.compiler.ir.graphs import graphs
from tests.compiler.ir.texts import SOLVER, TWO_RESULTS


@settings(max_examples=150, deadline=None, derandomize=True)
@given(graphs())
def test_print_then_parse_gives_an_equal_graph(graph: Graph) -> None:
    verify(graph)
    text = print_graph(graph)
    again = parse_graph(text)
    assert again == graph and print_graph(again) == text
    assert [node.origin for node in again.nodes()] == [node.origin for node in graph.nodes()]
    numbered = renumber(graph)
    assert parse_graph(print_graph(numbered)) == numbered and renumber(numbered) is numbered


SPLIT = "input x: f32[2,4] rate=observation\nweight @w: f32[3,4]\noutput y\n\n"
STAGE = (
    "stage s rate=observation (x: f32[2,4]) -> (y: f32[2,3]) {\n  y: f32[2,3] = linear(x, @w)\n}\n"
)
GOOD = SPLIT + STAGE


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("output y", "result y", "line 3: expected input, weight, output, named or stage"),
        ("output y", "output y z", "line 3: 'y z' is not a name"),
        ("rate=observation\nw", "rate=hourly\nw", "line 1: no rate 'hourly'; known: load, prompt"),
        ("@w: f32[3,4]\n", "@w f32[3,4]\n", "line 2: '@w f32.3,4.' is not `name: type`"),
        ("@w: f32[3,4]\n", "@w: f32[3,-4]\n", "line 2: .* is not `name: type`"),
        ("@w: f32[3,4]\n", "@w: f16[3,4]\n", "line 2: 'f16' is not a valid DType"),
        ("@w: f32[3,4]\n", "@w: f32[3,,4]\n", "line 2: invalid literal for int"),
        ("stage s", "stage s t", "line 5: expected `stage NAME rate=RATE"),
        ("\n}\n", "\n", "stage s has no closing brace"),
        (" = linear", " linear", "line 6: expected `RESULT: TYPE = op"),
        ("linear(", "bilinear(", "line 6: no op bilinear; known: add, add_norm"),
        ("(x, @w)", "(x, w w)", "line 6: 'w w' is not a name"),
        ("(x, @w)", "(x, @w) {slope=1}", "line 6: attribute 'slope'; LinearAttributes has"),
        ("(x, @w)", "(x, @w) {bias=true, bias=true}", "line 6: attribute 'bias'"),
        ("(x, @w)", "(x, @w) {bias=yes}", "line 6: 'yes' is not true or false"),
        ("linear(x, @w)", "rms_norm(x)", "line 6: NormAttributes: .*missing.*'eps'"),
        ("linear(x, @w)", "rms_norm(x) {eps=nan}", "line 6: 'nan' is not a finite number"),
        ("linear(x, @w)", "add_scalar(x) {value=1e999}", "line 6: '1e999' is not a finite number"),
        ("linear(x, @w)", "reshape(x) {shape=6}", "line 6: '6' is not a list"),
        (
            "linear(x, @w)",
            "pointwise(x) {program=[neg 0], results=[0], dtypes=[f32]}",
            "line 6: 'neg 0' is not an instruction",
        ),
        ("-> (y: f32[2,3])", "-> ()", "stage s says .* -> .., its nodes give .* -> .y: f32.2,3.."),
    ],
)
def test_errors_name_the_line_and_the_trouble(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ParseError, match=message):
        parse_graph(GOOD.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count=3", "count=three", "line 14: invalid literal for int"),
        ("index=%1: i32[]", "index=%1", "line 14: '%1' is not `name: type`"),
        ("  carry", "  loop count=1 index=%9: i32[]\n  carry", "line 15: expected one loop line"),
        (", %5 -> actions: f32[2,4]", "", "line 15: not enough values to unpack"),
        ("collect %5", "collect 5", "line 16: '5' is not a name"),
    ],
)
def test_loop_lines_are_checked(old: str, new: str, message: str) -> None:
    assert old in SOLVER
    with pytest.raises(ParseError, match=message):
        parse_graph(SOLVER.replace(old, new, 1))


def test_a_text_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "MAX_TEXT_BYTES", 10)
    with pytest.raises(ParseError, match="has 11 characters, the limit is 10"):
        parse_graph("x" * 11)


def mutated(text: str, source: random.Random) -> str:
    """The text with a few characters, lines or brackets changed, moved or repeated."""
    for _ in range(source.randint(1, 4)):
        at, end = sorted(source.randrange(len(text) + 1) for _ in range(2))
        piece = text[at : min(end, at + 12)]
        noise = "".join(source.choice("%@(){}[],;:=# \n-0129.\u0661\x00ax") for _ in range(3))
        lines = text.split("\n")
        source.shuffle(lines)
        text = source.choice(
            [
                text[:at] + text[at + 1 :],
                text[:at] + noise + text[at:],
                text[:at] + noise + text[at + len(piece) :],
                text[:at] + piece * 3 + text[at:],
                text[:at],
                "\n".join(lines) if source.random() < 0.2 else text[at:],
            ]
        )
    return text


def test_mutated_text_parses_or_raises_a_parse_error() -> None:
    source = random.Random(7)
    parsed = 0
    for number in range(3000):
        text = mutated((SOLVER, TWO_RESULTS, GOOD)[number % 3], source)
        try:
            graph = parse_graph(text)
        except ParseError:
            continue
        parsed += 1
        assert parse_graph(print_graph(graph)) == graph
    assert 0 < parsed < 3000


@pytest.mark.parametrize(
    "text",
    [
        "stage a rate=load () -> () {\n}\n" * 20_000,
        "input " + "x = " * 50_000,
        "stage a rate=load () -> () {\n" + " = ".join(["a(b"] * 30_000),
        "stage a rate=load () -> () {\n" + "x: f32[" + "1," * 50_000 + "1] = silu(x)",
        "weight @w: f32[" + "9" * 5000 + "]\n",
        SOLVER.replace("  carry", "  collect %5 -> %9: f32[3,2,4]\n" * 20_000 + "  carry"),
    ],
    ids=["stages", "equals", "calls", "sizes", "digits", "collects"],
)
def test_no_text_takes_long(text: str) -> None:
    started = time.perf_counter()
    with contextlib.suppress(ParseError):
        parse_graph(text)
    assert time.perf_counter() - started < 5, "the parser's time is not linear in the text"
