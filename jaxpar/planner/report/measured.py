"""The times of a plan that come from a profile's tables, and those from fitted shares, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from jaxpar.config.spelling import named
from jaxpar.cost.layout import Layout
from jaxpar.cost.tables import Asked
from jaxpar.planner.memo import Memo
from jaxpar.planner.profile import Profile
from jaxpar.planner.search.heterogeneous import StepTimer

KINDS = {"matmul": "matmul shapes", "attention forward": "attention kernels", "attention backward": "attention kernels"}
"""Names of what tables are of; the others are of messages."""


def table_lookups(timer: StepTimer, layout: Layout) -> set[Asked]:
    """All times that tables were asked for while the step of a layout was timed."""
    reached = timer.reached(timer.cluster)
    tables = reached.measured.recording()
    replace(timer, hardware=replace(reached, measured=tables), _known=Memo()).step(layout)
    assert tables.asked is not None, "it records"
    return tables.asked


def measured_words(file: Path, profile: Profile, asked: Iterable[Asked]) -> str:
    """Words for the times that are measured, of those that were asked for; the others are by fitted shares."""
    by_kind: defaultdict[str, list[bool]] = defaultdict(list)
    for one in sorted(asked):
        by_kind[KINDS.get(one.table.what, "messages")].append(one.measured)
    counts = [f"{sum(timed)} of {len(timed)} {kind}" for kind, timed in by_kind.items()]
    others = ("memory_share" in profile.model, "memory bandwidth"), ("host_bandwidth" in profile.links, "host copies")
    counts += [name for there, name in others if there]
    return (
        f"Measured, and by fitted shares where nothing near was ({named(file)}: {profile.title}): {', '.join(counts)}"
    )
