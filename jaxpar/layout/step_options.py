"""The compiler options of a step's programs, from its plan."""

from __future__ import annotations

import os

from jax.sharding import Mesh

from jaxpar.config.plan import Plan
from jaxpar.hardware.xla_flags import OVERLAP_LIMIT, flag_name
from jaxpar.layout.host_buffers import MEMORY_PERCENT
from jaxpar.layout.joining import GATHERS, SCATTERS
from jaxpar.layout.merging import MERGED


def step_options(plan: Plan, mesh: Mesh) -> dict[str, int]:
    """Compiler options of a step's programs; none on CPUs. A flag of the user's counts more."""
    if mesh.devices.flat[0].platform == "cpu":
        return {}
    limits = {
        GATHERS: plan.joined_gathers, SCATTERS: plan.joined_scatters, MERGED: plan.merged_matmuls_mb,
        MEMORY_PERCENT: plan.memory_percent,
        OVERLAP_LIMIT: plan.collectives_at_once if plan.collectives_at_once > 1 else None,
    }  # fmt: skip
    given = {flag_name(flag) for flag in os.environ.get("XLA_FLAGS", "").split()}
    return {name: limit for name, limit in limits.items() if limit is not None and name not in given}
