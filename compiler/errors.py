"""Errors of the compiler outside the intermediate representation."""

from __future__ import annotations


class CompileError(Exception):
    """The user asked for something that cannot be compiled; the message says what to do."""


class PassError(Exception):
    """A pass failed or broke a rule of the graph: our bug, not the user's."""
