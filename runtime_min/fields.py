"""Strict reading of JSON: every key is known, every value has its type and range."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from policyc.runtime_min.errors import BundleError


def parse_json(data: bytes, where: str, error: type[BundleError] = BundleError) -> object:
    """The JSON value in `data`; refuses repeated keys and NaN.

    Raises:
        error: with `where` and the position of the fault.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object_without_repeats,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as fault:
        raise error(
            f"{where}: not valid JSON: {fault}. The file is damaged; copy it again."
        ) from fault


def _object_without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = sorted({key for key in keys if keys.count(key) > 1})
        raise ValueError(f"repeated keys {', '.join(repeated)}")
    return result


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number")


class Fields:
    """One JSON object, read key by key; `done` refuses the keys that nobody asked for."""

    def __init__(self, value: object, where: str, error: type[BundleError] = BundleError) -> None:
        """Raises `error` when `value` is not an object; `where` is its path, for messages."""
        if not isinstance(value, dict):
            raise error(f"{where}: expected an object, got {describe(value)}.")
        self.where = where
        self.error = error
        self._items: dict[str, object] = value
        self._known: list[str] = []

    def has(self, key: str) -> bool:
        """Is the key there? Marks it as known."""
        self._known.append(key)
        return key in self._items

    def value(self, key: str) -> object:
        """The value of a required key, of any type."""
        self._known.append(key)
        if key not in self._items:
            present = ", ".join(sorted(self._items)) or "none"
            raise self.error(f"{self.where}: key '{key}' is missing; present: {present}.")
        return self._items[key]

    def text(self, key: str) -> str:
        return as_text(self.value(key), f"{self.where}.{key}", self.error)

    def integer(self, key: str, minimum: int, maximum: int) -> int:
        return as_integer(self.value(key), f"{self.where}.{key}", (minimum, maximum), self.error)

    def number(self, key: str) -> float:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{self.where}.{key}: expected a number, got {describe(value)}.")
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self.value(key)
        if not isinstance(value, bool):
            raise self.error(f"{self.where}.{key}: expected true or false, got {describe(value)}.")
        return value

    def items(self, key: str) -> list[object]:
        value = self.value(key)
        if not isinstance(value, list):
            raise self.error(f"{self.where}.{key}: expected a list, got {describe(value)}.")
        return value

    def mapping(self, key: str) -> dict[str, object]:
        value = self.value(key)
        if not isinstance(value, dict):
            raise self.error(f"{self.where}.{key}: expected an object, got {describe(value)}.")
        return cast(dict[str, object], value)

    def integers(self, key: str, minimum: int, maximum: int) -> tuple[int, ...]:
        return tuple(
            as_integer(item, f"{self.where}.{key}[{index}]", (minimum, maximum), self.error)
            for index, item in enumerate(self.items(key))
        )

    def done(self) -> None:
        """Refuses unknown keys and lists the known ones."""
        unknown = sorted(set(self._items) - set(self._known))
        if unknown:
            known = ", ".join(sorted(set(self._known)))
            raise self.error(
                f"{self.where}: unknown keys {', '.join(unknown)}; known: {known}. "
                "A newer compiler wrote this bundle, or it was edited."
            )


def as_text(value: object, where: str, error: type[BundleError] = BundleError) -> str:
    """The value as a string, or `error` with its place."""
    if not isinstance(value, str):
        raise error(f"{where}: expected a string, got {describe(value)}.")
    return value


def as_integer(
    value: object, where: str, limits: tuple[int, int], error: type[BundleError] = BundleError
) -> int:
    """The value as an integer within `limits` (both included), or `error` with its place."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{where}: expected an integer, got {describe(value)}.")
    minimum, maximum = limits
    if not minimum <= value <= maximum:
        raise error(f"{where}: expected {minimum} to {maximum}, got {value}.")
    return value


def describe(value: object) -> str:
    """Type and start of a JSON value, for messages."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def json_text(value: Mapping[str, object]) -> str:
    """Deterministic text: sorted keys, two blanks of indent, a newline at the end."""
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n"
