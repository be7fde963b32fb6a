"""Errors of the backends."""

from __future__ import annotations


class ToolchainError(Exception):
    """A tool of the compile machine is missing or too old: the user's to fix."""


class LoweringError(Exception):
    """A scheduled graph that has no launches: our bug."""


class CubinError(Exception):
    """A kernel that did not compile, or whose machine code is not what the plan needs: our bug."""
