"""Builds the plans and machine code of a bundle: one plan a compute capability."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from policyc.backends.assemble import assemble_bucket, assemble_plan, kernel_file
from policyc.backends.cubin import compile_kernels
from policyc.backends.lower import LoweredCall, distinct_sources, lower_calls
from policyc.backends.offers import collect_offers, counter_sizes, scratch_sizes
from policyc.backends.toolchain import Toolchain, check_toolchain
from policyc.backends.views import Placement, resolve_views
from policyc.compiler.describe import CPU_TARGET
from policyc.compiler.events import Event, Report
from policyc.compiler.ir.graph import Graph
from policyc.compiler.ir.memory import MemoryPlan
from policyc.compiler.ir.selection import Selection
from policyc.kernels.families import family_of
from policyc.passes.check_plan import check_plan
from policyc.passes.plan_memory import plan_memory
from policyc.passes.select_kernels import parameters_text, select_kernels
from policyc.profiles.choices import combined
from policyc.profiles.errors import ProfileError
from policyc.profiles.loader import known_targets, load_profile
from policyc.profiles.profile import Profile
from policyc.runtime_min.manifest import Target
from policyc.runtime_min.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """The GPU targets of a compile, and the tools that build for them; no tools for the CPU
    alone."""

    profiles: Mapping[str, Profile]
    toolchain: Toolchain | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltTarget:
    """Plan and machine code of one compute capability.

    Attributes:
        targets: the manifest's entries; the first one's profile decided the choices.
        cubins: file name in the bundle -> bytes.
        decisions: problem -> winner, reason and rejected candidates, as the manifest stores them.
    """

    targets: tuple[Target, ...]
    plan: Plan
    cubins: Mapping[str, bytes]
    decisions: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lowered:
    """One bucket on its way to launches."""

    graph: Graph
    placement: Placement
    memory: MemoryPlan
    calls: tuple[LoweredCall, ...]
    selection: Selection


def open_targets(names: Sequence[str], choices: Path | None = None) -> Profiles:
    """Load the profiles and check the tools, before anything else is read.

    Args:
        names: targets, `cpu` among them or not.
        choices: a choice file to combine with every profile; see `profiles.choices`.

    Raises:
        ProfileError: an unknown target, or a wrong choice file.
        ToolchainError: what is missing to build for a target.
    """
    known = (CPU_TARGET, *known_targets())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ProfileError(
            f"unknown target {', '.join(unknown)}; known: {', '.join(known)}. "
            "`policyc targets` describes them."
        )
    profiles = {name: _profile(name, choices) for name in names if name != CPU_TARGET}
    if not profiles:
        return Profiles(profiles={}, toolchain=None)
    capabilities = {profile.compute_capability for profile in profiles.values()}
    return Profiles(profiles=profiles, toolchain=check_toolchain(sorted(capabilities)))


def _profile(name: str, choices: Path | None) -> Profile:
    profile = load_profile(name)
    if choices is None:
        return profile
    return replace(profile, choices=combined(name, profile.choices, choices))


def build_targets(
    graphs: Mapping[int, Graph], targets: Profiles, cache: Path | None, report: Report
) -> tuple[BuiltTarget, ...]:
    """Plan, compile and assemble for every compute capability.

    Args:
        graphs: scheduled graphs with packed weights, by batch size.
        targets: from `open_targets`.
        cache: folder of compiled kernels; the user's if None.
        report: told about choices and kernels.

    Raises:
        SelectionError, LoweringError, CubinError: a node that the target cannot run.
    """
    by_capability: dict[int, dict[str, Profile]] = {}
    for name, profile in targets.profiles.items():
        by_capability.setdefault(profile.compute_capability, {})[name] = profile
    built = []
    for _, profiles in sorted(by_capability.items()):
        assert targets.toolchain is not None, "targets were opened without tools"
        if len(profiles) > 1:
            first, *others = profiles
            note = f"{', '.join(others)}: kernels and plan of {first}, the same compute capability"
            report(Event(kind="note", text=note))
        built.append(_build(graphs, profiles, targets.toolchain, cache, report))
    return tuple(built)


def _build(
    graphs: Mapping[int, Graph],
    profiles: Mapping[str, Profile],
    toolchain: Toolchain,
    cache: Path | None,
    report: Report,
) -> BuiltTarget:
    profile = next(iter(profiles.values()))
    capability = profile.compute_capability
    started = time.perf_counter()
    lowered = {batch: _lower(graph, profile) for batch, graph in graphs.items()}
    sources = {
        kernel: source
        for item in lowered.values()
        for kernel, source in distinct_sources(item.calls).items()
    }
    report(_event("plan", f"{len(sources)} kernels for compute capability {capability}", started))
    started = time.perf_counter()
    kernels = compile_kernels(sources, capability, toolchain, cache)
    report(_event("kernels", f"{len(kernels)} kernels compiled or found in the cache", started))
    buckets = {
        batch: assemble_bucket(item.graph, item.placement, item.memory, item.calls, kernels)
        for batch, item in lowered.items()
    }
    plan = assemble_plan(profile, kernels, buckets)
    return BuiltTarget(
        targets=tuple(
            Target(
                name=name,
                compute_capability=capability,
                minimum_driver=_minimum_driver(toolchain.ptxas[capability]),
            )
            for name in profiles
        ),
        plan=plan,
        cubins={kernel_file(capability, name): kernel.cubin for name, kernel in kernels.items()},
        decisions=_decisions(lowered.values()),
    )


def _lower(graph: Graph, profile: Profile) -> _Lowered:
    placement = resolve_views(graph)
    offers = collect_offers(placement.work, profile, family_of)
    selection = select_kernels(graph, offers, profile.choices)
    scratch = scratch_sizes(placement.work, selection, family_of)
    counters = counter_sizes(placement.work, selection, family_of)
    memory = plan_memory(graph, scratch, placement.copies, counters)
    check_plan(graph, memory)
    calls = lower_calls(placement.work, selection, profile, family_of)
    return _Lowered(
        graph=graph, placement=placement, memory=memory, calls=calls, selection=selection
    )


def _minimum_driver(ptxas: str) -> int:
    """The first CUDA version of the assembler's major release: machine code runs on all of that
    release."""
    return int(ptxas.split(".")[0]) * 1000


def _decisions(lowered: Iterable[_Lowered]) -> dict[str, object]:
    decisions: dict[str, object] = {}
    for item in lowered:
        for key, decision in item.selection.decisions.items():
            decisions[key] = {
                "winner": parameters_text(decision.parameters),
                "reason": decision.reason,
                "microseconds": decision.microseconds,
                "rejected": {
                    parameters_text(other.parameters): other.reason for other in decision.rejected
                },
            }
    return decisions


def _event(kind: str, text: str, started: float) -> Event:
    return Event(kind=kind, text=text, seconds=time.perf_counter() - started)
