"""Finds the line of an adapter that made a call of an exported program.

The exporter keeps only frames named `forward`, so the stage function is run once more, on the meta
device, while every PyTorch call notes the line it came from. Only messages need this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node as FxNode
from torch.overrides import TorchFunctionMode

_TORCH = str(Path(torch.__file__).parent)
_OWN_FILES = frozenset({"source_lines.py", "trace.py"})


def source_line(node: FxNode, function: Callable[..., Any], replay: Callable[[], object]) -> str:
    """`FILE:LINE in FUNCTION` of the call that became the node.

    Args:
        node: a call of the exported program.
        function: the stage function, which is named if the call cannot be told.
        replay: runs the stage function as it was run for export.
    """
    label = node.meta.get("torch_fn")
    if label is not None:
        calls = _CallLines()
        with calls:
            replay()
        if tuple(label) in calls.lines:
            return calls.lines[tuple(label)]
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


class _CallLines(TorchFunctionMode):
    """Notes the line of each call under the label that the exporter gives it: name and count."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[tuple[str, ...], str] = {}
        self._counts: dict[object, int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        count = self._counts[func] = self._counts.get(func, 0) + 1
        name = getattr(func, "__name__", "")
        self.lines[f"{name}_{count}", f"{type(func).__name__}.{name}"] = _adapter_line()
        return func(*args, **(kwargs or {}))


def _adapter_line() -> str:
    """The innermost frame outside PyTorch and outside tracing."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        inside = str(path).startswith(_TORCH)
        own = path.name in _OWN_FILES and path.parent.name == "frontends"
        if not inside and not own:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
