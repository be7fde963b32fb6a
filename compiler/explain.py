"""Why each kernel of a bundle was chosen, and what its launches cost at least. Needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from policyc.backends.offers import collect_offers
from policyc.backends.views import Work, resolve_views
from policyc.compiler.costs import node_cost
from policyc.compiler.ir.selection import Offer
from policyc.compiler.options import OptionError
from policyc.kernels.families import family_of
from policyc.passes.select_kernels import parameters_text
from policyc.profiles.loader import load_profile
from policyc.profiles.profile import Profile
from policyc.runtime_min.bundle import Bundle

NOT_RECORDED = "not recorded in the bundle"
NO_RUNNER_UP = "no other candidate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One problem: what was chosen, instead of what, and the cost of one of its nodes.

    `measured_us` is there only if the choice was measured on the target; `model_cost` is the
    family's figure for the winner (microseconds for products, a mere order for others), None if the
    family does not offer it any more. `rejected` maps every other candidate to the reason.
    """

    problem: str
    op: str
    shapes: str
    uses: int
    winner: str
    reason: str
    runner_up: str
    runner_up_reason: str
    measured_us: float | None
    model_cost: float | None
    bytes: int
    flops: int
    roof_us: float
    rejected: Mapping[str, str]

    @property
    def roof_share(self) -> float | None:
        return self.roof_us / self.measured_us if self.measured_us else None


def explain_bundle(
    bundle: Bundle, target: str | None, batch: int | None, text: str = ""
) -> tuple[Explanation, ...]:
    """The problems of a bucket whose key contains `text`, in order of first use.

    Args:
        bundle: an opened bundle.
        target: one of its targets; None takes the first.
        batch: one of its batch sizes; None takes the smallest.
        text: part of the problem's key.

    Raises:
        OptionError: no such target or batch; no problem with the text.
    """
    profile = load_profile(_target(bundle, target))
    buckets = bundle.manifest.batch_buckets
    shown = buckets[0] if batch is None else batch
    if shown not in buckets:
        compiled = ", ".join(map(str, buckets))
        raise OptionError(f"no batch {shown} in {bundle.folder}; compiled: {compiled}.")
    work = resolve_views(bundle.graph(shown)).work
    offers = collect_offers(work, profile, family_of)
    decisions = _decisions(bundle, profile)
    first: dict[str, Work] = {}
    uses: dict[str, int] = {}
    for item in work:
        key = offers[item.name].problem.key
        first.setdefault(key, item)
        uses[key] = uses.get(key, 0) + 1
    chosen = {key: item for key, item in first.items() if text in key}
    if not chosen:
        known = "".join(f"\n  {key}" for key in first)
        raise OptionError(f"no problem contains {text!r}; there are:{known}")
    return tuple(
        _explain(item, offers[item.name], decisions.get(key, {}), profile, uses[key])
        for key, item in chosen.items()
    )


def _target(bundle: Bundle, target: str | None) -> str:
    names = [item.name for item in bundle.manifest.targets]
    if not names:
        raise OptionError(f"{bundle.folder}: compiled for no GPU, so no kernel was chosen.")
    if target is not None and target not in names:
        raise OptionError(f"no target {target} in {bundle.folder}; compiled: {', '.join(names)}.")
    return target or names[0]


def _decisions(bundle: Bundle, profile: Profile) -> Mapping[str, Mapping[str, object]]:
    """The manifest's record for the compute capability; empty where there is none."""
    choices = bundle.manifest.provenance.get("kernel_choices")
    if not isinstance(choices, Mapping):
        return {}
    found = choices.get(str(profile.compute_capability), {})
    if not isinstance(found, Mapping):
        return {}
    return {str(key): item for key, item in found.items() if isinstance(item, Mapping)}


def _explain(
    item: Work, offer: Offer, decision: Mapping[str, object], profile: Profile, uses: int
) -> Explanation:
    cost = node_cost(item.node, item.operand_types)
    winner = str(decision.get("winner", NOT_RECORDED))
    recorded = decision.get("rejected")
    rejected = recorded if isinstance(recorded, Mapping) else {}
    measured = decision.get("microseconds")
    models = {parameters_text(c.parameters): c.cost for c in offer.candidates if not c.rejected}
    runner_up, why = _runner_up(offer, winner, rejected)
    return Explanation(
        problem=offer.problem.key,
        op=item.node.op,
        shapes=_shapes(item),
        uses=uses,
        winner=winner,
        reason=str(decision.get("reason", NOT_RECORDED)),
        runner_up=runner_up,
        runner_up_reason=why,
        measured_us=float(measured) if isinstance(measured, int | float) else None,
        model_cost=models.get(winner),
        rejected={str(key): str(reason) for key, reason in rejected.items()},
        bytes=cost.bytes,
        flops=cost.flops,
        roof_us=cost.roof_us(profile),
    )


def _runner_up(offer: Offer, winner: str, rejected: Mapping[object, object]) -> tuple[str, str]:
    """The best other candidate by the model among those that the device can run, and its reason."""
    ranked = sorted(
        (candidate for candidate in offer.candidates if not candidate.rejected),
        key=lambda candidate: (candidate.cost, candidate.parameters),
    )
    for candidate in ranked:
        text = parameters_text(candidate.parameters)
        if text != winner:
            return text, str(rejected.get(text, NOT_RECORDED))
    return "none", NO_RUNNER_UP


def _shapes(item: Work) -> str:
    operands = ", ".join(map(str, item.operand_types))
    return f"({operands}) -> {', '.join(str(value.type) for value in item.node.outputs)}"
