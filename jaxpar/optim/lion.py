"""Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2), elementwise: it works on any layout."""

from __future__ import annotations

import jax.numpy as jnp

from jaxpar.optim.arguments import OptimizerArguments
from jaxpar.optim.rule import Rule, RuleRequest, Shard, State


def lion(request: RuleRequest) -> Rule:
    """The sign of `beta1 m + (1 - beta1) g`; then the momentum m becomes `beta2 m + (1 - beta2) g`.

    Every element changes by the learning rate, so the rate should be smaller than AdamW's, and decay larger.
    """

    def direction(gradient, weight, state, step, arguments: OptimizerArguments) -> tuple[Shard, State]:
        mu, options = state["mu"], arguments.options
        return jnp.sign(options["beta1"].mean(mu, gradient)), {"mu": options["beta2"].mean(mu, gradient)}

    return Rule({"mu": request.like_weight(signed=True)}, direction)
