"""The times of a plan that come from a profile's tables, and those from fitted shares, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from jaxpar.config.spelling import named
from jaxpar.cost.tables import Asked
from jaxpar.planner.layout import Layout
from jaxpar.planner.profile import Profile
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.units import plural, size

SHOWN = 4
"""Sizes of one kind that are named."""
TYPES = {1: "8 bits", 2: "16 bits", 4: "float32"}


def asked_of(timer: StepTimer, layout: Layout) -> set[Asked]:
    """All times that tables were asked for while the step of a layout was timed."""
    reached = timer.reached(timer.cluster)
    tables = reached.measured.recording()
    own = StepTimer(
        timer.model, timer.sequence_length, timer.global_batch, timer.cluster,
        replace(reached, measured=tables), timer.update,
    )  # fmt: skip
    own.step(layout)
    assert tables.asked is not None, "it records"
    return tables.asked


def measured_words(file: Path, profile: Profile, asked: Iterable[Asked]) -> list[str]:
    """A line about what is measured, and one about what is not, if there is anything."""
    found: defaultdict[str, list[Asked]] = defaultdict(list)
    for one in sorted(asked):
        found[_kind(one)].append(one)
    counts = [f"{sum(one.measured for one in own)} of {len(own)} {kind}" for kind, own in found.items()]
    others = ("memory_share" in profile.model, "memory bandwidth"), ("host_bandwidth" in profile.links, "host copies")
    counts += [name for there, name in others if there]
    lines = [f"Measured ({named(file)}: {profile.title}): {', '.join(counts)}"]
    missing = [_sizes(kind, [one for one in own if not one.measured]) for kind, own in found.items()]
    if any(missing):
        lines.append(f"By fitted shares, since nothing near was measured: {'; '.join(filter(None, missing))}")
    return lines


def _kind(one: Asked) -> str:
    what, _ = one.table
    if what == "matmul":
        return "matmul shapes"
    return "attention kernels" if what.startswith("attention") else "messages"


def _sizes(kind: str, asked: Sequence[Asked]) -> str:
    """The first sizes, and how many more there are."""
    if not asked:
        return ""
    shown = ", ".join(_words(one) for one in asked[:SHOWN])
    more = f" and {len(asked) - SHOWN} more" if len(asked) > SHOWN else ""
    return f"{kind} {shown}{more}"


def _words(one: Asked) -> str:
    what, of = one.table
    if what == "matmul":
        return f"{' x '.join(f'{size:g}' for size in one.sizes)} in {TYPES[of[0]]}"
    if what.startswith("attention"):
        return f"{what.split()[1]} over {one.sizes[0]:g} keys, width {of[0]}"
    ranks, hosts = of
    return f"{what} of {size(one.sizes[0])} over {plural(ranks, 'rank')} on {plural(hosts, 'host')}"
