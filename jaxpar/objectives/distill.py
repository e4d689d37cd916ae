"""Knowledge distillation: each token's distribution is drawn to that of a teacher (Hinton et al. 2015,
arXiv:1503.02531).

With t and s the probabilities of teacher and model, both of logits divided by `temperature`, over the teacher's `top_k`
likeliest tokens and a further class with all others:

    divergence = sum over the classes of t (log t - log s)
    loss = (1 - teacher_weight) (-log p(label)) + teacher_weight temperature^2 divergence

The mean is over the tokens in the loss mask. TRL's `GKDTrainer` with `beta=0` has this divergence over the full
vocabulary; it does not multiply by the temperature's square.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.config.schema import Config
from jaxpar.runtime.batch import Field
from jaxpar.runtime.objective import Head, Objective

LEAST = 1e-6
"""Least probability of the further class."""


class Distillation(Objective):
    """The mean loss of tokens. Fields: the teacher's likeliest tokens after each token, and their log-probabilities."""

    reports = ("divergence",)

    def __init__(self, config: Config):
        loss = self._settings = config.loss
        self.fields = (*Objective.fields, *teacher_fields(loss.top_k))
        self.description = (
            f"{loss.teacher_weight:g} of the loss from the {loss.top_k} likeliest tokens of {loss.reference}, at "
            f"temperature {loss.temperature:g}"
        )

    def loss(self, head: Head, batch: dict[str, jax.Array]) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """See `Objective.loss`. Labels are the teacher's tokens too."""
        settings, mask, tokens = self._settings, batch["mask"], batch["teacher_tokens"]
        tempered = head.with_temperature(settings.temperature)

        def total(likely: Float[Array, "row token choice"]) -> Float[Array, ""]:
            return jnp.sum(mask * divergence(batch["teacher_likely"], likely))

        value, slope = jax.value_and_grad(total)(tempered.log_probabilities(tokens))
        weight = settings.teacher_weight
        pull = weight * settings.temperature**2
        from_labels, likelihood = head.cross_entropy(batch["labels"], (1 - weight) * mask)
        from_teacher, _ = tempered.cross_entropy(tokens, -pull * slope)
        return from_labels + from_teacher, {"loss": likelihood + pull * value, "divergence": value}


def teacher_fields(top_k: int) -> tuple[Field, Field]:
    """The teacher's likeliest tokens, and their log-probabilities at the temperature."""
    return Field("teacher_tokens", dims=(top_k,)), Field("teacher_likely", "float32", dims=(top_k,))


def divergence(
    teacher: Float[Array, "row token choice"], model: Float[Array, "row token choice"]
) -> Float[Array, "row token"]:
    """The divergence of the classes, from log-probabilities of the teacher's tokens."""
    rest = lambda likely: jnp.log(jnp.maximum(1 - jnp.exp(likely).sum(-1), LEAST))
    of_rest = rest(teacher)
    return (jnp.exp(teacher) * (teacher - model)).sum(-1) + jnp.exp(of_rest) * (of_rest - rest(model))
