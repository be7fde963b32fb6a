"""Choose kernel parameters for every problem of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.ops import row_of
from policyc.compiler.ir.selection import (
    Candidate,
    Decision,
    Offer,
    Parameters,
    Rejection,
    Selection,
)
from policyc.compiler.ir.sequence import Position, device_sequence
from policyc.profiles.profile import Choice


class SelectionError(Exception):
    """No kernel can run a node on the target, or the profile's choice is none that exists."""


def select_kernels(
    graph: Graph, offers: Mapping[str, Offer], choices: Mapping[str, Choice]
) -> Selection:
    """Choose one candidate a problem: the profile's choice if it has one, else the smallest cost.

    Ties go to the smaller parameters. A choice of the profile that was not measured on this device
    and is not offered here gives way to the cost, and the reason says so.

    Args:
        graph: scheduled graph.
        offers: by node (the name of its first result); nodes without a launch need none.
        choices: the profile's table, by problem key.

    Raises:
        SelectionError: a node without an offer; a problem whose candidates are all rejected; a
            measured choice that the family does not offer (any more).
    """
    nodes: dict[str, str] = {}
    first: dict[str, tuple[Offer, Position]] = {}
    for item in device_sequence(graph):
        offer = offers.get(item.name)
        if offer is None:
            if row_of(item.node.op).view:
                continue
            raise SelectionError(f"{_place(item)}: no kernel family serves {item.node.op}.")
        nodes[item.name] = offer.problem.key
        first.setdefault(offer.problem.key, (offer, item))
    uses = Counter(nodes.values())
    decisions = {
        key: _decide(offer, item, choices.get(key), uses[key])
        for key, (offer, item) in first.items()
    }
    return Selection(decisions=decisions, nodes=nodes)


def _decide(offer: Offer, item: Position, choice: Choice | None, uses: int) -> Decision:
    admissible = [candidate for candidate in offer.candidates if not candidate.rejected]
    if not admissible:
        reasons = "".join(
            f"\n  {parameters_text(candidate.parameters)}: {candidate.rejected}"
            for candidate in offer.candidates
        )
        raise SelectionError(
            f"{_place(item)}: no kernel can run '{offer.problem.key}' on this target."
            + (f" Candidates:{reasons}" if reasons else " The family offers no candidate.")
        )
    ranked = sorted(admissible, key=lambda candidate: (candidate.cost, candidate.parameters))
    chosen = _chosen(offer, ranked, choice)
    winner = chosen or ranked[0]
    measured = choice is not None and choice.how == "measured"
    return Decision(
        problem=offer.problem,
        parameters=winner.parameters,
        reason=_reason(ranked, choice, by_cost=chosen is None),
        microseconds=choice.microseconds if choice is not None and measured else None,
        uses=uses,
        rejected=tuple(
            _rejection(candidate, winner, by_cost=chosen is None)
            for candidate in offer.candidates
            if candidate.parameters != winner.parameters
        ),
    )


def _chosen(offer: Offer, ranked: list[Candidate], choice: Choice | None) -> Candidate | None:
    """The candidate that the profile names, or None if the cost decides."""
    if choice is None:
        return None
    for candidate in ranked:
        if candidate.parameters == choice.parameters:
            return candidate
    if choice.how == "measured":
        known = "; ".join(parameters_text(candidate.parameters) for candidate in ranked)
        raise SelectionError(
            f"'{offer.problem.key}': the profile's choice {parameters_text(choice.parameters)} is "
            f"not among the candidates that this target can run: {known}. Measure again with "
            "`policyc tune`, or remove the choice."
        )
    return None


def _reason(ranked: list[Candidate], choice: Choice | None, *, by_cost: bool) -> str:
    if not by_cost:
        assert choice is not None, "only the profile's table goes before the cost"
        return _choice_reason(choice)
    if len(ranked) == 1:
        reason = "only candidate"
    else:
        reason = f"lowest model cost {ranked[0].cost:.4g} of {len(ranked)}; nothing was measured"
    if choice is None:
        return reason
    wanted = parameters_text(choice.parameters)
    return f"{reason}; the profile's choice {wanted} is not offered here"


def _choice_reason(choice: Choice) -> str:
    if choice.how == "measured":
        return (
            f"measured {choice.microseconds:.4g} us (spread {choice.spread:.2g}) on {choice.date}, "
            f"driver {choice.driver}, clocks {choice.clocks}"
        )
    if choice.measured_on:
        return f"model: won on {choice.measured_on}, not measured here"
    return "model: the profile's table, not measured"


def _rejection(candidate: Candidate, winner: Candidate, *, by_cost: bool) -> Rejection:
    if candidate.rejected:
        reason = candidate.rejected
    elif not by_cost:
        reason = "the profile's table names another"
    elif candidate.cost == winner.cost:
        reason = f"same model cost {candidate.cost:.4g}, later in order of parameters"
    else:
        reason = f"model cost {candidate.cost:.4g}, the winner's is {winner.cost:.4g}"
    return Rejection(parameters=candidate.parameters, reason=reason)


def parameters_text(parameters: Parameters) -> str:
    """`block_m=64 num_warps=4`, or `none`."""
    return " ".join(f"{name}={value}" for name, value in parameters) or "none"


def _place(item: Position) -> str:
    origin = f" Origin {item.node.origin}." if item.node.origin else ""
    return f"stage {item.stage.name}, {item.name} {item.node.op}.{origin}".rstrip(".")
