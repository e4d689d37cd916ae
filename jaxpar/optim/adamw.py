"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2), elementwise: it works on any layout."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim.arguments import OptimizerArguments
from jaxpar.optim.rule import Rule, all_dims


def adamw(spec: ParamSpec) -> Rule:
    """Adam's direction with bias correction; decay is decoupled, so the optimizer adds it."""

    def direction(gradient, weight, mu, nu, step, arguments: OptimizerArguments) -> tuple[Any, Any, Any]:
        beta1, beta2, updates = arguments.beta1, arguments.beta2, step + 1
        mu, nu = beta1.mean(mu, gradient), beta2.mean(nu, jnp.square(gradient))
        corrected_mu, corrected_nu = mu / (1 - beta1.old**updates), nu / (1 - beta2.old**updates)
        return corrected_mu / (jnp.sqrt(corrected_nu) + arguments.epsilon), mu, nu

    return Rule(mu=True, nu=all_dims(spec), direction=direction)
