"""Lookups in a selection."""

from __future__ import annotations

import pytest

from policyc.compiler.ir.selection import Decision, Problem, Selection


def test_parameters_of_a_node() -> None:
    decision = Decision(
        problem=Problem(op="linear", key="linear m=1"),
        parameters=(("block", 16),),
        reason="only candidate",
        microseconds=None,
        uses=1,
        rejected=(),
    )
    selection = Selection(decisions={"linear m=1": decision}, nodes={"%0": "linear m=1"})
    assert selection.parameters_of("%0") == (("block", 16),)
    with pytest.raises(KeyError):
        selection.parameters_of("%1")
