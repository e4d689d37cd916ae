"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2), elementwise: it works on any layout."""

from __future__ import annotations

import jax.numpy as jnp

from jaxpar.optim.arguments import OptimizerArguments
from jaxpar.optim.rule import Rule, RuleRequest, Shard, State


def adamw(request: RuleRequest) -> Rule:
    """Adam's direction with bias correction; decay is decoupled, so the optimizer adds it."""

    def direction(gradient, weight, state, step, arguments: OptimizerArguments) -> tuple[Shard, State]:
        options, updates = arguments.options, step + 1
        beta1, beta2 = options["beta1"], options["beta2"]
        mu, nu = beta1.mean(state["mu"], gradient), beta2.mean(state["nu"], jnp.square(gradient))
        corrected_mu, corrected_nu = mu / (1 - beta1.value**updates), nu / (1 - beta2.value**updates)
        return corrected_mu / (jnp.sqrt(corrected_nu) + options["epsilon"].value), {"mu": mu, "nu": nu}

    state = {"mu": request.like_weight(signed=True), "nu": request.like_weight(signed=False)}
    return Rule(state, direction)
