"""Errors of the frontends: all of them are the user's to mend."""

from __future__ import annotations


class FrontendError(Exception):
    """A checkpoint, a configuration or an adapter that cannot be compiled; the message says why."""
