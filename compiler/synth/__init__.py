"""Random checkpoints in the public layouts, for trials without downloading anything."""

from __future__ import annotations

from policyc.compiler.synth.checkpoint import SynthesisError, SynthesisOptions, synthesise
from policyc.compiler.synth.dimensions import SIZES

__all__ = ["SIZES", "SynthesisError", "SynthesisOptions", "synthesise"]
