"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2), elementwise: any layout will do."""

from __future__ import annotations

from typing import Any

import optax

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim.rule import Rule, all_dims


def adamw(config: OptimizerConfig, spec: ParamSpec) -> Rule:
    """Adam's direction with bias correction; decay is decoupled, so the optimizer adds it."""
    transform = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)

    def direction(gradient, weight, first, second, step) -> tuple[Any, Any, Any]:
        # optax counts updates itself; here the step is the count, so that there is one number to save and to trust
        updates, state = transform.update(gradient, optax.ScaleByAdamState(count=step, mu=first, nu=second))
        assert isinstance(state, optax.ScaleByAdamState)
        return updates, state.mu, state.nu

    return Rule(peak=config.learning_rate, first=True, second=all_dims(spec), direction=direction)
