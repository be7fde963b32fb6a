"""Errors of the frontends: all of them are the user's to mend."""

from __future__ import annotations


class FrontendError(Exception):
    """A checkpoint, a configuration or an adapter that cannot be compiled; the message says why."""


class CheckpointError(FrontendError):
    """A checkpoint folder or its tensors are missing, damaged, unsafe or of another policy."""


class StatisticsError(FrontendError):
    """Normalisation statistics are missing, ambiguous or unusable."""
