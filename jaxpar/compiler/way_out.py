"""What to change where a configuration does not fit a cluster, in words."""

from __future__ import annotations

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config, UserError
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.memory.nearest_fit import describe_fit, nearest_fit
from jaxpar.layout.step_layout import StepLayout


def way_out(config: Config, cluster: Cluster, needed: int | None = None) -> str:
    """The nearest settings that fit `cluster`, or a sentence that none do, by estimates and without compiling.

    Args:
        config: what does not fit.
        cluster: where.
        needed: XLA's own number for it, in bytes on a GPU.
    """
    config, plan = plan_for(config, cluster)

    def rebuild(changed: Config) -> StepLayout:
        layout = StepLayout(*plan_for(changed, cluster))
        on_host, limit = estimate_memory(layout.config, layout.plan).host, cluster.host_limit(config.memory.host_limit)
        if layout.plan.optimizer_offload != "file" and on_host > limit:
            raise UserError(f"memory.host_limit: {limit} bytes, and {on_host} are needed for each device")
        return layout

    return describe_fit(nearest_fit(StepLayout(config, plan), pool_bytes(cluster.device_bytes), rebuild, needed))
