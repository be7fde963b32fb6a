"""Errors of the profiles: the user named a target that does not exist, or wrote a wrong profile."""

from __future__ import annotations


class ProfileError(Exception):
    """An unknown target, or a profile that breaks the schema; the message names file and key."""
