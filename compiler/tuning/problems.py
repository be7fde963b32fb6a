"""What there is to tune in a bundle: one launch of each problem, with its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policyc.backends.offers import collect_offers
from policyc.backends.views import Work, resolve_views
from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.selection import Candidate
from policyc.kernels.families import family_of
from policyc.profiles.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningProblem:
    """A problem: the first node that has it, and the candidates that the device can run.

    `weight` orders problems by how much a better kernel may save: uses times the model's cost.
    """

    key: str
    work: Work
    uses: int
    candidates: tuple[Candidate, ...]

    @property
    def weight(self) -> float:
        return self.uses * min((item.cost for item in self.candidates), default=0.0)


def tuning_problems(
    graphs: Sequence[Graph], profile: Profile, text: str = ""
) -> tuple[TuningProblem, ...]:
    """The problems of the graphs whose key contains `text`, the most expensive first."""
    first: dict[str, tuple[Work, tuple[Candidate, ...]]] = {}
    uses: dict[str, int] = {}
    for graph in graphs:
        work = resolve_views(graph).work
        offers = collect_offers(work, profile, family_of)
        for item in work:
            offer = offers[item.name]
            usable = tuple(c for c in offer.candidates if not c.rejected)
            first.setdefault(offer.problem.key, (item, usable))
            uses[offer.problem.key] = uses.get(offer.problem.key, 0) + 1
    problems = [
        TuningProblem(key=key, work=work, uses=uses[key], candidates=candidates)
        for key, (work, candidates) in first.items()
        if text in key
    ]
    return tuple(sorted(problems, key=lambda problem: (-problem.weight, problem.key)))
