from __future__ import annotations

import pytest

from policyc.runtime_min.errors import BundleError, PlanError
from policyc.runtime_min.fields import Fields, as_integer, json_text, parse_json


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "repeated keys a"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_damaged_json_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        parse_json(data, "plan/90.json", PlanError)
    assert str(caught.value).startswith("plan/90.json: ")


def test_unknown_keys_are_refused_with_the_known_ones() -> None:
    fields = Fields({"size": 1, "colour": 2}, "x.y")
    assert fields.integer("size", 0, 5) == 1
    with pytest.raises(BundleError, match=r"x\.y: unknown keys colour; known: size"):
        fields.done()


def test_a_missing_key_lists_the_present_ones() -> None:
    with pytest.raises(BundleError, match="key 'size' is missing; present: colour"):
        Fields({"colour": 2}, "x").integer("size", 0, 5)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1], 6, -1])
def test_an_integer_has_its_type_and_range(value: object) -> None:
    with pytest.raises(BundleError, match=r"x\.n: expected"):
        as_integer(value, "x.n", (0, 5))


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("text", 1),
        ("number", True),
        ("number", "1"),
        ("boolean", 0),
        ("items", {}),
        ("mapping", []),
    ],
)
def test_every_reader_checks_the_type(method: str, value: object) -> None:
    with pytest.raises(BundleError, match=r"x\.key: expected"):
        getattr(Fields({"key": value}, "x"), method)("key")


def test_not_an_object() -> None:
    with pytest.raises(BundleError, match="x: expected an object, got list"):
        Fields([], "x")


def test_text_is_deterministic() -> None:
    assert json_text({"b": 1, "a": [2]}) == json_text({"a": [2], "b": 1})
    assert json_text({}).endswith("\n")
