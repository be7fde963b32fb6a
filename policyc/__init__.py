"""Ahead-of-time compiler for robot policies, and the runtime that replays what it built.

`policyc.Policy` is the runtime's entry point; it is imported on first use, so that `import policyc` costs
nothing and needs neither torch nor a GPU driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policyc.runtime_min.policy import Policy

__version__ = "0.1.0"
__all__ = ["Policy", "__version__"]


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name == "Policy":
        from policyc.runtime_min.policy import Policy

        return Policy
    raise AttributeError(f"module 'policyc' has no attribute {name!r}; it has {', '.join(__all__)}")
