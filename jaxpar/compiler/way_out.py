"""What to change where a configuration does not fit a cluster, in words."""

from __future__ import annotations

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config, UserError
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layers.checks import validate
from jaxpar.training.memory_estimate import estimate_memory
from jaxpar.training.nearest_fit import nearest_fit, told
from jaxpar.training.room import described_step
from jaxpar.training.step import TrainStep


def way_out(config: Config, cluster: Cluster, needed: int | None = None) -> str:
    """The nearest settings that fit `cluster`, or that there are none: of estimates, without compiling.

    Args:
        config: what does not fit.
        cluster: where.
        needed: XLA's own number for it, in bytes on a GPU.
    """
    config, plan = plan_for(config, cluster)

    def rebuild(changed: Config) -> TrainStep:
        validate(changed)
        step = described_step(*plan_for(changed, cluster))
        on_host, limit = estimate_memory(step).host, cluster.host_limit(config.memory.host_limit)
        if step.filed is None and on_host > limit:
            raise UserError(f"memory.host_limit: {limit} bytes, and {on_host} are needed for each device")
        return step

    return told(nearest_fit(described_step(config, plan), pool_bytes(cluster.device_bytes), rebuild, needed))
