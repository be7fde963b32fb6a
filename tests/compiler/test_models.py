from __future__ import annotations

from policyc.compiler.models import MODELS
from policyc.compiler.options import Precision
from policyc.frontends.families import FAMILIES


def test_the_table_says_what_the_frontends_have() -> None:
    ours = [(model.name, model.layouts) for model in MODELS]
    assert ours == [(family.name, family.layouts) for family in FAMILIES]


def test_precisions_are_those_of_the_options() -> None:
    for model in MODELS:
        assert model.precisions == tuple(precision.value for precision in Precision)
