"""The reason why a search found nothing: rules that exclude every layout, or the least memory and GPUs that fit it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Protocol

from jaxpar.hardware.cluster import Cluster
from jaxpar.pages.units import size
from jaxpar.planner.search.activation_planner import ActivationPlanner
from jaxpar.planner.search.space import Choice, Group, Space

MOST = 65536
"""The largest number of GPUs tried when looking for a cluster that is large enough."""
NAMED = 3
"""The most sets of rules that are named."""


class Tried(Protocol):
    """A finished search: `jaxpar.planner.search.search.Search`."""

    space: Space

    @property
    def usable(self) -> int:
        """Bytes of a device that a layout may take."""
        ...

    @property
    def host_limit(self) -> int:
        """Bytes of its host's memory that a GPU may have pinned."""
        ...

    def activations(self, group: Group, choice: Choice) -> ActivationPlanner:
        """The activation planner of a choice."""
        ...

    def on(self, cluster: Cluster) -> Tried:
        """The same search on another cluster."""
        ...


def nothing_fits_message(search: Tried, groups: int, declined: str | None) -> str:
    """The message for a user.

    Args:
        search: the one that found nothing.
        groups: number of groups that were allowed.
        declined: why a run would refuse the first of what fits; None where nothing fits.
    """
    cluster = search.space.cluster
    if not groups:
        return no_layout(search.space)
    device = min(least for activations in _planners(search) for least in activations.smallest())
    takes = (
        f"it takes at least {size(device)} of a GPU, and {size(search.usable)} of its "
        f"{size(cluster.device_bytes)} may be planned for"
    )
    if device <= search.usable:
        host = min(kept.memory.host for activations in _planners(search) for kept in activations.options())
        takes = (
            f"layouts that fit a GPU take at least {size(host)} of host memory for each GPU, and "
            f"{size(search.host_limit)} may be pinned there (memory.host_limit, or host_memory of the cluster)"
        )
        if host <= search.host_limit and declined is not None:
            takes = f"a run would refuse the layouts that fit: {declined}"
    if search.space.fixed:
        more = "remove " + " and ".join(f"--fix {name}={value}" for name, value in search.space.fixed.items())
    else:
        fits = fitting_devices(search)
        more = (
            f"no number of these hosts up to {MOST:,} GPUs is enough" if fits is None else f"it would fit {fits} GPUs"
        )
    return f"the model fits no layout of {cluster.name}: {takes}; {more}"


def no_layout(space: Space) -> str:
    """The rules that exclude everything: those without which the most layouts would be allowed."""
    nearest = space.nearest().most_common()
    reasons = [f"{count} would be allowed but for {' and '.join(sorted(rules))}" for rules, count in nearest[:NAMED]]
    if len(nearest) > NAMED:
        reasons.append(f"{sum(count for _, count in nearest[NAMED:])} but for other rules")
    return f"no layout of {space.cluster.devices} GPUs is allowed: {'; '.join(reasons)}"


def _planners(search: Tried) -> Iterator[ActivationPlanner]:
    """One planner per group, schedule, ZeRO stage and place of the optimizer's state; strategies keep the same, and
    ends that are shared take less than others."""
    for group in search.space.groups():
        strategy, ends = search.space.strategies(group)[0], search.space.ends(group.pipe, group.tensor)
        microbatches = search.space.config.data.batch_size // (group.data * group.microbatch)
        for (schedule, virtual), zero, offload in product(
            search.space.schedules(group.pipe, microbatches), search.space.zeros(group), search.space.offloads()
        ):
            yield search.activations(group, Choice(zero, strategy, max(ends), offload, schedule, virtual))


def fitting_devices(search: Tried) -> int | None:
    """The fewest GPUs, by doubling the hosts, that the model fits on; None if not even on `MOST`."""
    cluster = search.space.cluster
    while cluster.devices < MOST:
        cluster = replace(cluster, groups=tuple(replace(group, hosts=2 * group.hosts) for group in cluster.groups))
        larger = search.on(cluster)
        for activations in _planners(larger):
            kept = activations.options() if min(activations.smallest()) <= larger.usable else ()
            if any(one.memory.host <= larger.host_limit for one in kept):
                return cluster.devices
    return None
