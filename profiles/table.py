"""Strict access to TOML tables: every key is asked for by name and type, the rest is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from policyc.profiles.errors import ProfileError

T = TypeVar("T")


class Table:
    """A TOML table whose keys must all be taken before `done`."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise ProfileError(f"{where}: expected a table, got {type(value).__name__}.")
        self._rest: dict[str, object] = {str(key): item for key, item in value.items()}
        self._asked: list[str] = []
        self.where = where

    def take(self, key: str, kind: type[T]) -> T:
        """The value of a required key; raises ProfileError if it is absent or of another type."""
        self._asked.append(key)
        if key not in self._rest:
            known = ", ".join(sorted(self._rest)) or "nothing"
            raise ProfileError(f"{self.where}: no '{key}' ({kind.__name__}); it has {known}.")
        value = self._rest.pop(key)
        # A bool is an int in Python, not in a profile; a whole number is a fine float.
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            got = f"{type(value).__name__} {value!r}"
            raise ProfileError(f"{self.where}.{key}: expected {kind.__name__}, got {got}.")
        return value

    def take_if_present(self, key: str, kind: type[T]) -> T | None:
        """The value of an optional key, None if absent."""
        if key in self._rest:
            return self.take(key, kind)
        self._asked.append(key)
        return None

    def table(self, key: str) -> Table:
        return Table(self.take(key, dict), f"{self.where}.{key}")

    def remaining(self) -> tuple[str, ...]:
        """Keys that were not taken yet, in the order of the file."""
        return tuple(self._rest)

    def done(self) -> None:
        """Raise ProfileError if keys remain; lists those that are known."""
        if self._rest:
            unknown = ", ".join(sorted(self._rest))
            known = ", ".join(self._asked)
            raise ProfileError(f"{self.where}: unknown key {unknown}; known keys: {known}.")
