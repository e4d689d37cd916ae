"""The learning rate as a function of the step. Its numbers are arguments of a compiled step, its shape too."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.schema import OptimizerConfig

float32: Any = np.float32
"""Makes arguments, which NumPy's scalars are until they are on the devices."""


class ScheduleArguments(NamedTuple):
    """A schedule of any shape: warm-up, then a fall from 1 to `final`, linear or along a cosine.

    Steps are divided by lengths as products with reciprocals, as XLA divides by constants.
    """

    warmup: Float[Array, ""]
    """Number of warm-up steps."""
    per_warmup_step: Float[Array, ""]
    """The reciprocal of `warmup`."""
    start: Float[Array, ""]
    """Step at which the fall starts."""
    per_step: Float[Array, ""]
    """The reciprocal of the number of decay steps."""
    final: Float[Array, ""]
    """Value after the fall."""
    span: Float[Array, ""]
    """1 minus `final`, rounded once."""
    cosine: Bool[Array, ""]
    """Whether the fall follows a cosine."""


def schedule_arguments(config: OptimizerConfig, steps: int) -> ScheduleArguments:
    """The schedule of `config` for a run of `steps` updates, as NumPy scalars.

    Warm-up is `(t + 1) / warmup_steps`: the first update is not zero, and update `warmup_steps - 1` has the peak.
    After it, u goes from 0 to 1 between `warmup_steps` and `decay_steps` (null: `steps`). With f = `final_fraction`,
    cosine is `f + (1 - f) (1 + cos(pi u)) / 2`; linear is `1 - (1 - f) u`; wsd is 1, then falls linearly to f over the
    last `decay_fraction` of `decay_steps` (Hu et al. 2024, arXiv:2404.06395); constant is 1. The end value stays.
    """
    end = steps if config.decay_steps is None else config.decay_steps
    final = 1.0 if config.schedule == "constant" else config.final_fraction
    start = end - config.decay_fraction * end if config.schedule == "wsd" else config.warmup_steps
    # A fall without steps is a jump at its start; steps are whole numbers, so it has one step that no update takes.
    start, length = (start, end - start) if end > start else (start - 1, 1)
    inverse = lambda steps: float32(1) / float32(steps)
    cosine: Any = np.bool_(config.schedule == "cosine")
    return ScheduleArguments(
        float32(config.warmup_steps), inverse(max(config.warmup_steps, 1)), float32(start), inverse(length),
        float32(final), float32(1 - final), cosine,
    )  # fmt: skip


def schedule_at(schedule: ScheduleArguments, step: Int[Array, ""] | int) -> Float[Array, ""]:
    """The learning rate of update `step` (from 0) as a fraction of its peak, the same for every rule."""
    t = jnp.asarray(step, jnp.float32)
    u = jnp.clip((t - schedule.start) * schedule.per_step, 0.0, 1.0)
    along_cosine = schedule.final + 0.5 * schedule.span * (1 + jnp.cos(jnp.pi * u))
    after = jnp.where(schedule.cosine, along_cosine, 1 - schedule.span * u)
    return jnp.where(t < schedule.warmup, (t + 1) * schedule.per_warmup_step, after)
