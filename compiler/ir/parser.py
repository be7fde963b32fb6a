"""Parser of the text form; `text.py` describes and prints it.

The text of a bundle comes from strangers: every error is a ParseError with the line, and nothing is
evaluated.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable, Iterator

from policyc.compiler.ir.attributes import Instruction
from policyc.compiler.ir.errors import IrError, ParseError
from policyc.compiler.ir.graph import Carry, Collect, Graph, Input, Loop, Node, Rate, Stage, Value
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.text import signatures
from policyc.compiler.ir.types import DType, TensorType

MAX_TEXT_BYTES = 256 << 20
_NAME = r"[@%A-Za-z_][\w.@%/\-]*"
_TYPE = re.compile(r"([a-z0-9]+)\[([0-9,]*)\]$")
_NODE = re.compile(r"(?P<results>[^=]+) = (?P<op>\w+)\((?P<inputs>[^)]*)\)(?: \{(?P<attrs>.*)\})?$")
_STAGE = re.compile(r"stage (?P<name>\w+) rate=(?P<rate>\w+) (?P<signature>\(.*\)) \{$")
_INSTRUCTION = re.compile(r"(\w+)\(([0-9, ]*)(?:; ([^)]+))?\)$")


def parse_graph(text: str) -> Graph:
    """The graph that the text describes; raises ParseError."""
    if len(text) > MAX_TEXT_BYTES:
        raise ParseError(f"graph text has {len(text)} characters, the limit is {MAX_TEXT_BYTES}")
    parser = _Parser(text)
    try:
        return parser.graph()
    except (IrError, ValueError) as error:
        raise ParseError(f"line {parser.number}: {error}") from error


class _Parser:
    """Reads line by line; `number` is the line in work, for messages."""

    def __init__(self, text: str) -> None:
        self.number = 0
        self._lines = self._numbered(text)

    def _numbered(self, text: str) -> Iterator[str]:
        for number, line in enumerate(text.split("\n"), start=1):
            self.number = number
            if line.strip():
                yield line.strip()

    def graph(self) -> Graph:
        inputs: list[Input] = []
        weights: list[Value] = []
        names: dict[str, list[str]] = {"output": [], "named": []}
        stages: list[Stage] = []
        stated_ones: list[str] = []
        for line in self._lines:
            word, _, rest = line.partition(" ")
            if word == "input":
                value, _, rate = rest.rpartition(" rate=")
                inputs.append(Input(value=_value(value), rate=_rate(rate)))
            elif word == "weight":
                weights.append(_value(rest))
            elif word in names:
                names[word].append(_name(rest))
            elif word == "stage":
                stage, stated = self._stage(line)
                stages.append(stage)
                stated_ones.append(stated)
            else:
                raise ParseError("expected input, weight, output, named or stage")
        graph = Graph(
            inputs=tuple(inputs),
            weights=tuple(weights),
            stages=tuple(stages),
            outputs=tuple(names["output"]),
            named=tuple(names["named"]),
        )
        _check_signatures(graph, stated_ones)
        return graph

    def _stage(self, line: str) -> tuple[Stage, str]:
        match = _STAGE.match(line)
        if match is None:
            raise ParseError("expected `stage NAME rate=RATE (..) -> (..) {`")
        loop: Loop | None = None
        carries: list[Carry] = []
        collects: list[Collect] = []
        nodes: list[Node] = []
        for inner in self._lines:
            if inner == "}":
                rate = _rate(match["rate"])
                if loop is not None:
                    loop = dataclasses.replace(
                        loop, carries=tuple(carries), collects=tuple(collects)
                    )
                stage = Stage(name=match["name"], rate=rate, nodes=tuple(nodes), loop=loop)
                return stage, match["signature"]
            word, _, rest = inner.partition(" ")
            if word == "loop":
                if loop is not None or nodes:
                    raise ParseError("expected one loop line, first in its stage")
                count, _, index = rest.removeprefix("count=").partition(" index=")
                loop = Loop(count=int(count), index=_value(index))
            elif word == "carry" and loop is not None:
                carries.append(_carry(rest))
            elif word == "collect" and loop is not None:
                collects.append(_collect(rest))
            else:
                nodes.append(self._node(inner))
        raise ParseError(f"stage {match['name']} has no closing brace")

    def _node(self, line: str) -> Node:
        body, _, origin = line.partition("  # ")
        match = _NODE.match(body)
        if match is None:
            raise ParseError("expected `RESULT: TYPE = op(..) {..}`")
        inputs = match["inputs"]
        return Node(
            op=match["op"],
            inputs=tuple(_name(name) for name in inputs.split(", ")) if inputs else (),
            outputs=tuple(_value(item) for item in _split(match["results"])),
            attrs=_attributes(row_of(match["op"]).attributes, match["attrs"] or ""),
            origin=origin,
        )


def _collect(text: str) -> Collect:
    each, _, stacked = text.partition(" -> ")
    return Collect(each=_name(each), stacked=_value(stacked))


def _carry(text: str) -> Carry:
    first, second = _split(text)
    initial, _, inner = first.partition(" -> ")
    following, _, final = second.partition(" -> ")
    return Carry(
        initial=_name(initial), inner=_value(inner), next=_name(following), final=_value(final)
    )


def _check_signatures(graph: Graph, stated_ones: list[str]) -> None:
    for stage, stated, derived in zip(graph.stages, stated_ones, signatures(graph), strict=True):
        if stated != derived:
            raise ParseError(f"stage {stage.name} says {stated}, its nodes give {derived}")


def _split(text: str) -> list[str]:
    """Split at `, ` outside brackets."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character in "[(":
            depth += 1
        elif character in "])":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts


def _name(text: str) -> str:
    if not re.fullmatch(_NAME, text):
        raise ParseError(f"{text!r} is not a name")
    return text


def _rate(text: str) -> Rate:
    for rate in Rate:
        if rate.text == text:
            return rate
    raise ParseError(f"no rate {text!r}; known: {', '.join(rate.text for rate in Rate)}")


def _value(text: str) -> Value:
    name, _, kind = text.partition(": ")
    match = _TYPE.match(kind)
    if match is None:
        raise ParseError(f"{text!r} is not `name: type`")
    shape = tuple(int(size) for size in match[2].split(",")) if match[2] else ()
    return Value(name=_name(name), type=TensorType(DType(match[1]), shape))


@functools.cache
def _field_types(kind: type) -> dict[str, object]:
    return dict(typing.get_type_hints(kind))


def _attributes(kind: type, text: str) -> object:
    hints = _field_types(kind)
    given: dict[str, object] = {}
    for item in _split(text) if text else []:
        name, _, value = item.partition("=")
        if name not in hints or name in given:
            raise ParseError(f"attribute {name!r}; {kind.__name__} has {', '.join(hints)}")
        given[name] = _attribute(hints[name], value)
    try:
        return kind(**given)
    except TypeError as error:
        raise ParseError(f"{kind.__name__}: {error}") from error


def _attribute(hint: object, text: str) -> object:
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        if not (text.startswith("[") and text.endswith("]")):
            raise ParseError(f"{text!r} is not a list")
        return tuple(_attribute(inner, item) for item in _split(text[1:-1]) if item)
    reader = _READERS.get(hint, _number)
    return reader(text)


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ParseError(f"{text!r} is not true or false")
    return text == "true"


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return _float(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ParseError(f"{text!r} is not a finite number")
    return number


def _instruction(text: str) -> Instruction:
    match = _INSTRUCTION.match(text)
    if match is None:
        raise ParseError(f"{text!r} is not an instruction")
    arguments = tuple(int(item) for item in match[2].split(",") if item.strip())
    value = None if match[3] is None else _number(match[3])
    return Instruction(op=match[1], arguments=arguments, value=value)


_READERS: dict[object, Callable[[str], object]] = {
    bool: _boolean,
    int: int,
    float: _float,
    str: _name,
    DType: DType,
    Instruction: _instruction,
}
