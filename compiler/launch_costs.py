"""Joins the launches of a bucket with what their nodes cost, and with measured times.

A node with several launches counts at the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from policyc.compiler.costs import Cost, node_cost
from policyc.compiler.ir.graph import Graph, Node, value_types
from policyc.compiler.ir.sequence import device_sequence
from policyc.compiler.ir.types import TensorType
from policyc.profiles.profile import Profile
from policyc.runtime_min.bundle import Bundle
from policyc.runtime_min.device_executor import DeviceExecutor
from policyc.runtime_min.graph_timing import ReplayCosts
from policyc.runtime_min.plan import Launch

_NO_COST = Cost()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCost:
    """A group of launches: counts, least bytes and operations, and the time it adds to a replay.

    `roof_us` adds up the roofs of the launches; `microseconds` is None where nothing was measured
    (launches that must stay in the graph).
    """

    name: str
    stage: str
    launches: int
    bytes: int
    flops: int
    roof_us: float
    microseconds: float | None

    @property
    def us_per_launch(self) -> float | None:
        return None if self.microseconds is None else self.microseconds / self.launches

    @property
    def roof_share(self) -> float | None:
        """Roof over measured time; None where the time is not above zero."""
        measured = self.microseconds
        return None if measured is None or measured <= 0 else self.roof_us / measured


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReport:
    """What a replay is made of. `total_us` is its median; groups need not add up to it."""

    target: str
    batch: int
    total_us: float
    groups: tuple[GroupCost, ...]


Key = Callable[[Launch], tuple[str, str]]
"""Launch -> (stage, name of its group)."""


def by_kernel(launch: Launch) -> tuple[str, str]:
    """Groups of (stage, kernel)."""
    return launch.stage, launch.kernel


def by_stage(launch: Launch) -> tuple[str, str]:
    """A group a stage."""
    return launch.stage, launch.stage


def launch_costs(graph: Graph, launches: Iterable[Launch]) -> tuple[tuple[Launch, Cost], ...]:
    """Every launch with its cost, by the node that it computes."""
    nodes = {item.name: item.node for item in device_sequence(graph)}
    types = value_types(graph)
    counted: set[str] = set()
    rows: list[tuple[Launch, Cost]] = []
    for launch in launches:
        cost = _NO_COST if launch.node in counted else _cost(nodes[launch.node], types)
        counted.add(launch.node)
        rows.append((launch, cost))
    return tuple(rows)


def measure_groups(
    executor: DeviceExecutor, batch: int, launches: Iterable[Launch], key: Key, count: int
) -> ReplayCosts:
    """What each group adds to a replay; see `DeviceExecutor.measure_without`."""
    names = dict.fromkeys("/".join(key(launch)) for launch in launches)
    groups: dict[str, Callable[[Launch], bool]] = {name: _belongs(key, name) for name in names}
    return executor.measure_without(batch, groups, count)


def launch_report(
    bundle: Bundle, profile: Profile, batch: int, key: Key, measured: ReplayCosts
) -> LaunchReport:
    """Counts, roofs and times of all groups, the most expensive first."""
    launches = bundle.plan(profile.compute_capability).buckets[batch].launches
    groups: dict[tuple[str, str], list[Cost]] = {}
    for launch, cost in launch_costs(bundle.graph(batch), launches):
        groups.setdefault(key(launch), []).append(cost)
    rows = [
        GroupCost(
            name=name,
            stage=stage,
            launches=len(costs),
            bytes=sum(cost.bytes for cost in costs),
            flops=sum(cost.flops for cost in costs),
            roof_us=sum(cost.roof_us(profile) for cost in costs),
            microseconds=measured.groups_us.get(f"{stage}/{name}"),
        )
        for (stage, name), costs in groups.items()
    ]
    rows.sort(key=lambda row: (-(row.microseconds or 0.0), row.stage, row.name))
    return LaunchReport(
        target=profile.target, batch=batch, total_us=measured.total_us, groups=tuple(rows)
    )


def _belongs(key: Key, name: str) -> Callable[[Launch], bool]:
    return lambda launch: "/".join(key(launch)) == name


def _cost(node: Node, types: Mapping[str, TensorType]) -> Cost:
    return node_cost(node, tuple(types[name] for name in node.inputs))
