"""Running averages of loss and gradient norm: carried state from outside the package.

    python -m tests.extending.averages --config configs/quickstart.yaml

trains as `python -m jaxpar.train` does, and a logged step records `average_loss` and `average_grad_norm`. They are of
all steps with finite numbers, logged or not; each has DECAY times the weight of the step after it.
"""

import sys

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.layout.state import CARRIED, CarriedRequest
from jaxpar.runtime.carried import Carried, Outcome

DECAY = 0.98
"""The weight of a step relative to the next one: an average of about 50 steps."""


class Averages(Carried[Float[Array, "3"]]):
    """Weighted sums of losses, gradient norms and ones over steps with finite numbers; the newest weighs 1 - DECAY."""

    name = "averages"
    title = "running averages"
    saved_as = f"decay {DECAY}"

    def init(self) -> Float[Array, "3"]:
        return jnp.zeros(3)

    def next(self, state: Float[Array, "3"], outcome: Outcome) -> Float[Array, "3"]:
        newest = jnp.stack([outcome.loss, outcome.grad_norm, jnp.ones_like(outcome.loss)])
        return jnp.where(jnp.isfinite(newest).all(), DECAY * state + (1 - DECAY) * newest, state)

    def metrics(self, state: Float[Array, "3"], outcome: Outcome) -> Float[Array, "3"]:
        return self.next(state, outcome)

    def record(self, metrics: Float[Array, "3"]) -> dict[str, object]:
        loss, grad_norm, weight = map(float, metrics)
        return {"average_loss": loss / weight, "average_grad_norm": grad_norm / weight} if weight else {}


def averages(request: CarriedRequest) -> Averages:
    """The entry of the registry: every run has it."""
    del request
    return Averages()


if __name__ == "__main__":
    from jaxpar.train import main

    CARRIED.append(averages)
    sys.exit(main())
