"""A planned layout as `plan.json` holds it."""

from __future__ import annotations

from typing import Any

from jaxpar.layout.plan_file import PlanFile
from jaxpar.planner.search.avoid import never_measured
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.stage_groups import ranks_of, stages_by_group


def planned_file(planned: Planned, cluster: str) -> PlanFile:
    """The plan, what is predicted, and all that a run of it needs.

    Args:
        planned: the layout.
        cluster: where it is for, as the user wrote it.
    """
    return PlanFile(planned.config, planned.plan, cluster, _predicted(planned))


def _predicted(planned: Planned) -> dict[str, Any]:
    time, memory = planned.candidate.time, planned.candidate.memory
    ranks = ranks_of(planned.candidate.layout)
    return {
        "step_time_s": time.seconds,
        "interval_s": None if planned.spread is None else list(planned.spread.interval(time.seconds)),
        "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
        "mfu": time.mfu,
        "peak_bytes": memory.device,
        "host_bytes": memory.host,
        "usable_bytes": planned.usable,
        "breakdown": dict(time.breakdown),
        "memory": {name: size for name, size in memory._asdict().items() if name != "host"},
        "never_measured": never_measured(planned.candidate.layout),
        "node_order": planned.order,
        "hosts": planned.cluster.hosts,
        "stages": [
            {"group": one.group.name, "gpu": one.group.gpu.name, "first": one.first, "layers": one.layers}
            for one in stages_by_group(planned.cluster, planned.plan.axes.pipe, ranks, planned.plan.stage_layers)
        ],
    }
