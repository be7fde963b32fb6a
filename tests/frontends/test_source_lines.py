"""The line of an adapter behind a call of an exported program."""

from __future__ import annotations

from pathlib import Path

import torch

from policyc.frontends.source_lines import source_line


def repeated(x: torch.Tensor) -> torch.Tensor:
    y = torch.erf(x)
    return torch.erf(y)


def test_the_second_call_of_a_function_is_told_from_the_first() -> None:
    graph = torch.fx.Graph()
    lines = []
    for count in (1, 2, 3):
        node = graph.placeholder(f"x{count}")
        node.meta["torch_fn"] = (f"erf_{count}", "builtin_function_or_method.erf")
        place = source_line(node, repeated, lambda: repeated(torch.empty(2, device="meta")))
        assert Path(place.split(":")[0]) == Path(__file__)
        lines.append(int(place.split(":")[1].split()[0]) - repeated.__code__.co_firstlineno)
    assert lines == [1, 2, 0], "an unknown call falls back to the function itself"


def test_a_call_without_a_label_names_the_function() -> None:
    node = torch.fx.Graph().placeholder("x")
    place = source_line(node, repeated, lambda: None)
    assert place.endswith(f":{repeated.__code__.co_firstlineno} in repeated")
