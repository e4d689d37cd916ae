"""Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2), elementwise: it works on any layout."""

from __future__ import annotations

from typing import Any

import optax

from jaxpar.config.schema import OptimizerConfig
from jaxpar.optim.rule import Rule


def lion(config: OptimizerConfig) -> Rule:
    """The sign of `beta1 m + (1 - beta1) g`; then the momentum m becomes `beta2 m + (1 - beta2) g`.

    Every element changes by the learning rate, so the rate should be smaller than AdamW's, and decay larger.
    """
    transform = optax.scale_by_lion(b1=config.lion_beta1, b2=config.lion_beta2)

    def direction(gradient, weight, mu, nu, step) -> tuple[Any, Any, Any]:
        updates, state = transform.update(gradient, optax.ScaleByLionState(count=step, mu=mu))
        assert isinstance(state, optax.ScaleByLionState)
        return updates, state.mu, None

    return Rule(peak=config.learning_rate, mu=True, nu=None, direction=direction)
