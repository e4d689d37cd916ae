"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2), elementwise: it works on any layout."""

from __future__ import annotations

from typing import Any

import optax

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim.rule import Rule, all_dims


def adamw(config: OptimizerConfig, spec: ParamSpec) -> Rule:
    """Adam's direction with bias correction; decay is decoupled, so the optimizer adds it."""
    transform = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)

    def direction(gradient, weight, mu, nu, step) -> tuple[Any, Any, Any]:
        # optax counts updates itself; here the step is the count, so that only one number is saved
        updates, state = transform.update(gradient, optax.ScaleByAdamState(count=step, mu=mu, nu=nu))
        assert isinstance(state, optax.ScaleByAdamState)
        return updates, state.mu, state.nu

    return Rule(peak=config.learning_rate, mu=True, nu=all_dims(spec), direction=direction)
