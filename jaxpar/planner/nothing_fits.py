"""Why a search found nothing: which rules leave no layout, or what the model takes at least and where it would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.keeping import Keeper
from jaxpar.planner.space import Choice, Space

if TYPE_CHECKING:
    from jaxpar.planner.search import Search

MOST = 65536
"""GPUs up to which it is looked for a cluster that is large enough."""
NAMED = 3
"""Sets of rules that are named."""


def why_none(search: Search) -> str:
    """The sentence for a user."""
    if not search.effort.groups:
        return no_layout(search.space)
    gib = lambda size: f"{size / 2**30:.1f} GiB"
    device = min(least for keeper in _keepers(search) for least in keeper.smallest())
    takes = (
        f"it takes {gib(device)} of a GPU at least, and {gib(search.usable)} of its "
        f"{gib(search.cluster.device_bytes)} may be planned for"
    )
    if device <= search.usable:
        host = min(kept.memory.host for keeper in _keepers(search) for kept in keeper.options())
        takes = (
            f"what goes into a GPU takes {gib(host)} of the host for each of them at least, and "
            f"{gib(search.host_limit)} may be pinned there (memory.host_limit, or host_memory of the cluster)"
        )
        if host <= search.host_limit and search.effort.declined:
            takes = f"a run would refuse those that would: {search.effort.declined[0][1]}"
    if search.space.fixed:
        more = "let go of " + " and ".join(f"--fix {name}={value}" for name, value in search.space.fixed.items())
    else:
        fits = fitting_devices(search)
        more = f"no number of these hosts up to {MOST:,} GPUs would do" if fits is None else f"it would fit {fits} GPUs"
    return f"the model fits no layout of {search.cluster.name}: {takes}; {more}"


def no_layout(space: Space) -> str:
    """Which rules left nothing of the space: those without which the most layouts would be allowed."""
    nearest = space.nearest().most_common()
    told = [f"{number} would be but for {_joined(rules)}" for rules, number in nearest[:NAMED]]
    if len(nearest) > NAMED:
        told.append(f"{sum(number for _, number in nearest[NAMED:])} but for other rules")
    return f"no layout of {space.cluster.devices} GPUs is allowed: {'; '.join(told)}"


def _joined(rules: frozenset[str]) -> str:
    return " and ".join(sorted(rules))


def _keepers(search: Search) -> Iterator[Keeper]:
    """One for each group, schedule, ZeRO stage and place of the optimizer's state; strategies keep the same."""
    groups, _ = search.space.groups()
    for group in groups:
        strategy = search.space.strategies(group)[0]
        microbatches = search.space.config.data.batch_size // (group.data * group.microbatch)
        for (schedule, virtual), zero, away in product(
            search.space.schedules(group.pipe, microbatches), search.space.zeros(group), search.space.offloads()
        ):
            yield search.keeper(group, Choice(schedule, virtual, zero, strategy, away))


def fitting_devices(search: Search) -> int | None:
    """The fewest GPUs, by doubling the hosts, that the model fits; None where not even `MOST` do."""
    cluster = search.cluster
    while cluster.devices < MOST:
        cluster = doubled(cluster)
        larger = type(search)(replace(search.space, cluster=cluster), search.mechanisms, search.hardware, search.limit)
        if any(_fits(keeper, larger.usable, larger.host_limit) for keeper in _keepers(larger)):
            return cluster.devices
    return None


def _fits(keeper: Keeper, usable: int, host_limit: int) -> bool:
    if min(keeper.smallest()) > usable:
        return False
    return any(kept.memory.host <= host_limit for kept in keeper.options())


def doubled(cluster: Cluster) -> Cluster:
    """Twice as many hosts of each group."""
    return replace(cluster, groups=tuple(replace(group, hosts=2 * group.hosts) for group in cluster.groups))
