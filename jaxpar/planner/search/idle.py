"""Hosts that are better left idle: prime counts of hosts, and models too small for all of them."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.planner.search.search import Search

NEAREST, EVEN = 8, 8
"""Numbers of hosts that are tried below the cluster's: the nearest, and the nearest that are one of `ODD` times a power
of two. On up to nine hosts these are all. Besides these all powers of two and thrice them: a cluster may be many times
too large for a model."""
ODD = (1, 3, 5, 9, 15, 25, 27, 45, 75)


def on_fewer_hosts(search: Search, seconds: float) -> Search | None:
    """The search on the number of hosts whose best layout is the fastest; None where none is below `seconds` a step.

    Args:
        search: of hosts of one kind.
        seconds: of the best layout on all hosts; infinite if there is none.
    """
    cluster, best = search.cluster, None
    group = cluster.groups[0]
    powers = range(cluster.hosts.bit_length())
    even = sorted(hosts for odd in ODD for power in powers if (hosts := odd << power) < cluster.hosts)[-EVEN:]
    fewer = {
        *range(cluster.hosts - NEAREST, cluster.hosts),
        *even,
        *(odd << power for odd in ODD[:2] for power in powers),
    }
    for hosts in sorted((hosts for hosts in fewer if 0 < hosts < cluster.hosts), reverse=True):
        name = f"{hosts} of the {cluster.hosts} hosts of {cluster.name}"
        other = search.on(replace(cluster, name=name, groups=(replace(group, hosts=hosts),)))
        if other.bounds.arithmetic() >= seconds:  # and fewer take longer
            break
        found = other.fastest_below(seconds)
        if found is not None:
            seconds, best = found, other
    return best
