"""All kernel families, and which one serves an op."""

from __future__ import annotations

from policyc.compiler.ir.errors import IrError
from policyc.kernels.attention_spec import AttentionFamily
from policyc.kernels.gather_spec import GatherFamily
from policyc.kernels.linear_spec import LinearFamily
from policyc.kernels.norm_spec import NormFamily
from policyc.kernels.pointwise_spec import PointwiseFamily
from policyc.kernels.rope_spec import RopeFamily
from policyc.kernels.spec import Family

FAMILIES: tuple[Family, ...] = (
    LinearFamily(),
    NormFamily(),
    AttentionFamily(),
    RopeFamily(),
    GatherFamily(),
    PointwiseFamily(),
)


class NoKernel(IrError):
    """An op of the scheduled level that no kernel family serves."""


def family_of(op: str) -> Family:
    """The family that serves an op; raises NoKernel that lists the ops with kernels."""
    for family in FAMILIES:
        if op in family.ops:
            return family
    known = sorted(name for family in FAMILIES for name in family.ops)
    raise NoKernel(f"no kernel for op {op}; ops with kernels: {', '.join(known)}")
