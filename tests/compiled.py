"""Bundles compiled for tests: each set of options once a session, shared by pytest's workers."""

from __future__ import annotations

import fcntl
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policyc.compiler.compile import compile_checkpoint
from policyc.compiler.events import Event
from policyc.compiler.options import CompileOptions, Precision


def silent(event: Event) -> None:
    """A report that nobody reads."""


def compile_to(output: Path, checkpoint: Path, **options: Any) -> Path:
    """Compile in this process, for the CPU in float32 unless the options say otherwise."""
    chosen = {"targets": ("cpu",), "precision": Precision.FLOAT32} | options
    compile_checkpoint(CompileOptions(checkpoint=checkpoint, output=output, **chosen), silent)
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBundles:
    """Compiles on first demand. Workers share `folder` and wait for each other's compile.

    Attributes:
        folder: where the bundles lie.
        cache: compiled kernels.
    """

    folder: Path
    cache: Path

    def __call__(self, checkpoint: Path, **options: Any) -> Path:
        """The bundle of a checkpoint; tests must not write into it."""
        key = repr((checkpoint.resolve(), sorted(options.items())))
        output = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.policy"
        with output.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not output.exists():
                compile_to(output, checkpoint, cache=self.cache, **options)
        return output
