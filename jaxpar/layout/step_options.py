"""The compiler options of a step's programs, from its plan."""

from __future__ import annotations

import os
from collections.abc import Mapping

from jax.sharding import Mesh

from jaxpar.config.plan import Plan
from jaxpar.hardware.xla_flags import GATHERS, MEMORY_PERCENT, MERGED, OVERLAP_LIMIT, SCATTERS, flag_name

CPU_OPTIONS = {"xla_backend_optimization_level": 1}
"""Options of a run's programs on CPUs. Under LLVM's level 3, XLA's default, the program of the initial weights compiles
for five times as long and that of a step for 1.4 times, and both run no faster."""


def cpu_options(mesh: Mesh) -> dict[str, int]:
    """Compiler options of any program on a mesh of CPUs; none on others. A flag of the user's counts more."""
    return _without_user_flags(CPU_OPTIONS) if mesh.devices.flat[0].platform == "cpu" else {}


def step_options(plan: Plan, mesh: Mesh) -> dict[str, int]:
    """Compiler options of a step's programs. A flag of the user's counts more."""
    if mesh.devices.flat[0].platform == "cpu":
        return cpu_options(mesh)
    limits = {
        GATHERS: plan.joined_gathers, SCATTERS: plan.joined_scatters, MERGED: plan.merged_matmuls_mb,
        MEMORY_PERCENT: plan.memory_percent,
        OVERLAP_LIMIT: plan.collectives_at_once if plan.collectives_at_once > 1 else None,
    }  # fmt: skip
    return _without_user_flags({name: limit for name, limit in limits.items() if limit is not None})


def _without_user_flags(options: Mapping[str, int]) -> dict[str, int]:
    """`options` without those that the user's flags name."""
    given = {flag_name(flag) for flag in os.environ.get("XLA_FLAGS", "").split()}
    return {name: value for name, value in options.items() if name not in given}
