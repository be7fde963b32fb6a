"""Pre- and post-processing of a policy, read from the bundle as data and interpreted in numpy."""

from __future__ import annotations

from policyc.runtime_min.processing.pipeline import Processing

__all__ = ["Processing"]
