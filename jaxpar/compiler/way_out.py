"""What to change where a configuration does not fit a cluster, in words."""

from __future__ import annotations

from jaxpar.compiler.compile import plan_for
from jaxpar.config import Config
from jaxpar.config.validate import validate
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.memory import pool_bytes
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
        return described_step(*plan_for(changed, cluster))

    return told(nearest_fit(described_step(config, plan), pool_bytes(cluster.device_bytes), rebuild, needed))
