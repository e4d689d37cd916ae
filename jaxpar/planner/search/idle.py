"""Hosts that are better left idle: prime counts of hosts, and models too small for all of them."""

from __future__ import annotations

import heapq
from dataclasses import replace

from jaxpar.planner.search.search import Search

NEAREST, EVEN = 8, 8
"""Numbers of hosts that are tried below the cluster's: the nearest, and the nearest of which 2, 3 and 5 are the only
prime factors. On up to nine hosts these are all. Besides these all powers of two and thrice them: a cluster may be many
times too large for a model."""


def fewer_hosts(hosts: int) -> list[int]:
    """The numbers that are tried, in descending order."""
    even = heapq.nlargest(EVEN, _smooth(hosts - 1))
    halves = {times << power for times in (1, 3) for power in range(hosts.bit_length()) if times << power < hosts}
    return sorted({*range(max(1, hosts - NEAREST), hosts), *even, *halves}, reverse=True)


def on_fewer_hosts(search: Search, seconds: float) -> Search | None:
    """The search on the number of hosts whose best layout is the fastest; None where none is below `seconds` a step.

    Args:
        search: of hosts of one kind.
        seconds: of the best layout on all hosts; infinite if there is none.
    """
    cluster, best = search.cluster, None
    group = cluster.groups[0]
    for hosts in fewer_hosts(cluster.hosts):
        name = f"{hosts} of the {cluster.hosts} hosts of {cluster.name}"
        other = search.on(replace(cluster, name=name, groups=(replace(group, hosts=hosts),)))
        if other.bounds.arithmetic() >= seconds:  # and fewer take longer
            break
        faster = other.fastest_below(seconds)
        if faster is not None:
            seconds, best = faster, other
    return best


def _smooth(most: int) -> list[int]:
    """Numbers up to `most` whose prime factors are 2, 3 and 5."""
    sizes = {1}
    for factor in (2, 3, 5):
        for hosts in sorted(sizes):
            while (hosts := hosts * factor) <= most:
                sizes.add(hosts)
    return [hosts for hosts in sizes if hosts <= most]
