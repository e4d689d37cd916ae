"""The learning rate as a function of the step."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpar.config.schema import OptimizerConfig

type Schedule = Callable[[Int[Array, ""] | int], Float[Array, ""]]
"""Step (0 for the first update) to a float32 scalar."""


def schedule(config: OptimizerConfig, steps: int) -> Schedule:
    """The learning rate as a fraction of its peak, the same for every rule.

    Warm-up is `(t + 1) / warmup_steps`: the first update is not zero, and update `warmup_steps - 1` has the peak.
    After it, u goes from 0 to 1 between `warmup_steps` and `decay_steps` (null: `steps`). With f = `final_fraction`,
    cosine is `f + (1 - f) (1 + cos(pi u)) / 2`; linear is `1 - (1 - f) u`; wsd is 1, then falls linearly to f over the
    last `decay_fraction` of `decay_steps` (Hu et al. 2024, arXiv:2404.06395); constant is 1. The end value stays.
    """
    end = steps if config.decay_steps is None else config.decay_steps
    warmup, final = config.warmup_steps, config.final_fraction
    fall = config.decay_fraction * end

    def fraction(step: Int[Array, ""] | int) -> Float[Array, ""]:
        t = jnp.asarray(step, jnp.float32)
        u = _progress(t, warmup, end)
        after = {
            "cosine": final + (1 - final) * (1 + jnp.cos(jnp.pi * u)) / 2,
            "linear": 1 - (1 - final) * u,
            "wsd": 1 - (1 - final) * _progress(t, end - fall, end),
            "constant": jnp.ones_like(t),
        }[config.schedule]
        return jnp.where(t < warmup, (t + 1) / max(warmup, 1), after)

    return fraction


def rising(low: float, high: float, steps: int) -> Schedule:
    """From `low` for the first update to `high` for the last of `steps`, by equal factors, as a fraction of `high`."""

    def fraction(step: Int[Array, ""] | int) -> Float[Array, ""]:
        return jnp.float32(low / high) ** (1 - jnp.asarray(step, jnp.float32) / (steps - 1))

    return fraction


def learning_rate(config: OptimizerConfig, steps: int, fraction: Schedule | None = None) -> Schedule:
    """The learning rate at a step of a run of `steps` updates; under Muon, that of the weights that AdamW updates.

    It is `fraction` of its peak, by default the schedule of `config`.
    """
    share = schedule(config, steps) if fraction is None else fraction
    return lambda step: config.learning_rate * share(step)


def muon_learning_rate(config: OptimizerConfig, steps: int, fraction: Schedule | None = None) -> Schedule | None:
    """The learning rate of Muon's matrices likewise; None under another optimizer."""
    if config.name != "muon":
        return None
    share = schedule(config, steps) if fraction is None else fraction
    return lambda step: config.muon_learning_rate * share(step)


def _progress(t: Float[Array, ""], start: float, end: float) -> Float[Array, ""]:
    """From 0 at `start` to 1 at `end`, flat outside; a jump at `start` if the two are equal."""
    if end <= start:
        return (t >= start).astype(jnp.float32)
    return jnp.clip((t - start) / (end - start), 0.0, 1.0)
