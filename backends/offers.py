"""Ask the kernel families what they offer for the launches of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policyc.backends.errors import LoweringError
from policyc.backends.views import Work
from policyc.compiler.ir.selection import Candidate, Offer, Selection
from policyc.kernels.families import NoKernel, family_of
from policyc.kernels.spec import Device, Family

Families = Callable[[str], Family]
"""The family that serves an op; raises NoKernel where there is none."""


def collect_offers(
    work: Sequence[Work], device: Device, families: Families = family_of
) -> dict[str, Offer]:
    """Problem and candidates of every launch, by node name; equal problems are asked once.

    Raises:
        LoweringError: an op that no family serves.
    """
    known: dict[str, tuple[Candidate, ...]] = {}
    offers: dict[str, Offer] = {}
    for item in work:
        try:
            family = families(item.node.op)
        except NoKernel as error:
            raise LoweringError(f"{item.place}: {error}") from error
        problem = family.problem(item.node, item.operand_types)
        if problem.key not in known:
            known[problem.key] = family.candidates(item.node, item.operand_types, device)
        offers[item.name] = Offer(problem=problem, candidates=known[problem.key])
    return offers


def scratch_sizes(
    work: Sequence[Work], selection: Selection, families: Families = family_of
) -> dict[str, int]:
    """Bytes of workspace of every launch that needs some, by node name."""
    sizes: dict[str, int] = {}
    for item in work:
        parameters = selection.parameters_of(item.name)
        size = families(item.node.op).scratch_bytes(item.node, item.operand_types, parameters)
        if size:
            sizes[item.name] = size
    return sizes


def counter_sizes(
    work: Sequence[Work], selection: Selection, families: Families = family_of
) -> dict[str, int]:
    """Bytes of counters of every launch that has some, by node name."""
    sizes: dict[str, int] = {}
    for item in work:
        parameters = selection.parameters_of(item.name)
        size = families(item.node.op).counter_bytes(item.node, item.operand_types, parameters)
        if size:
            sizes[item.name] = size
    return sizes
