"""Strict access to tables."""

from __future__ import annotations

import pytest

from policyc.profiles.errors import ProfileError
from policyc.profiles.table import Table


def test_takes_by_type() -> None:
    table = Table({"a": 1, "b": 2, "c": {"d": "x"}}, "file")
    assert table.take("a", int) == 1
    assert table.take("b", float) == 2.0
    assert table.table("c").take("d", str) == "x"
    assert table.take_if_present("e", int) is None
    table.done()


def test_bool_is_not_an_integer() -> None:
    with pytest.raises(ProfileError, match="file.a: expected int, got bool True"):
        Table({"a": True}, "file").take("a", int)


def test_rest_is_an_error() -> None:
    table = Table({"a": 1, "z": 2}, "file")
    table.take("a", int)
    assert table.remaining() == ("z",)
    with pytest.raises(ProfileError, match="file: unknown key z; known keys: a"):
        table.done()


def test_not_a_table() -> None:
    with pytest.raises(ProfileError, match="file: expected a table, got list"):
        Table([], "file")
