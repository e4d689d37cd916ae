"""Gated feed-forwards, `down(f(gate(x)) * up(x))` (arXiv:2002.05202)."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from statistics import NormalDist

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.part import Elementwise, Matmuls, Part, Traffic
from jaxpar.layers.feed_forward.base import HIDDEN, OUT, FeedForward, hidden_weights
from jaxpar.mesh.collectives import sum_over_heads
from jaxpar.runtime.passes import ALWAYS_SAVED

ALPHA, LIMIT = 1.702, 7.0
"""Constants of `ClampedSwiGLU`."""
TINY = 1e-30
"""The least variance whose root is taken, which has no derivative at 0."""


class Gated(FeedForward):
    """`non_linear` of the gate, times `factor` of up; the gate is perhaps sparse (`model.activation_sparsity`)."""

    routed_inputs = ("up", "gate")
    sparse = True

    def __init__(self, model: ModelConfig, part: Part | None = None, tiles: int = 1):
        super().__init__(model, part, tiles)
        self.sparsity = model.activation_sparsity

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Gate and up are kept; one elementwise kernel recomputes the rest."""
        return Part(
            name="mlp",
            weights=hidden_weights(model, "gate", "up"),
            activations=(
                Activation("mlp_gate", HIDDEN),
                Activation("mlp_up", HIDDEN),
                Activation("mlp_activated", HIDDEN, cheap=True),
                Activation("mlp_hidden", HIDDEN, cheap=True),
            ),
            operations=(
                Matmuls("mlp_in", ("up", "gate"), inward=True, outputs=("mlp_up", "mlp_gate")),
                Elementwise("mlp_activated"),
                # Forward reads gate and up and writes their product; backward reads these and the gradient of the
                # product, and writes those of both.
                Elementwise("mlp_hidden", traffic=Traffic(3, 5)),
                OUT,
            ),
        )

    @staticmethod
    @abstractmethod
    def non_linear(gate: jax.Array, /) -> jax.Array:
        """Returns the non-linearity of the gate."""

    @staticmethod
    def factor(up: jax.Array) -> jax.Array:
        """The factor of f(gate)."""
        return up

    def activate(self, *hidden: jax.Array) -> Float[Array, "batch seq mlp"]:
        """f(gate) * factor(up), with their biases."""
        up, gate = hidden
        up = self.named(self.biased(up, "up"), "mlp_up")
        gate = self.named(self.biased(gate, "gate"), "mlp_gate")
        gate = above_quantile(gate, self.sparsity) if self.sparsity else gate
        activated = self.named(self.non_linear(gate), "mlp_activated")
        return self.named(activated * self.factor(up), "mlp_hidden")


class SwiGLU(Gated):
    """A SiLU of the gate."""

    non_linear = staticmethod(jax.nn.silu)


class ClampedSwiGLU(Gated):
    """The feed-forward of gpt-oss: gate and up are cut off at `LIMIT`, and 1 is added to up."""

    @staticmethod
    def non_linear(gate: jax.Array) -> jax.Array:
        """`gate * sigmoid(1.702 gate)`, which resembles GELU."""
        gate = jnp.minimum(gate, LIMIT)
        return gate * jax.nn.sigmoid(ALPHA * gate)

    @staticmethod
    def factor(up: jax.Array) -> jax.Array:
        """Returns the clipped `up + 1` that the gate multiplies."""
        return jnp.clip(up, -LIMIT, LIMIT) + 1


class GeGLU(Gated):
    """A GELU of the gate, approximated by tanh."""

    non_linear = staticmethod(partial(jax.nn.gelu, approximate=True))


class ExactGeGLU(Gated):
    """A GELU of the gate (ModernBERT)."""

    non_linear = staticmethod(partial(jax.nn.gelu, approximate=False))


def above_quantile(gate: Float[Array, "batch seq mlp"], share: float) -> Float[Array, "batch seq mlp"]:
    """`max(gate - cutoff, 0)`, where the cutoff of a token is above `share` of a normal distribution with the mean and
    the deviation of its gates. Tensor ranks, which have some of the gates each, add up two numbers of a token."""
    x = gate.astype(jnp.float32)
    width = x.shape[-1] * lax.axis_size("tensor")
    moments = sum_over_heads(jnp.stack([x.sum(axis=-1), jnp.square(x).sum(axis=-1)])) / width
    mean, square = checkpoint_name(moments, ALWAYS_SAVED)
    deviation = jnp.sqrt(jnp.maximum(square - jnp.square(mean), TINY))
    cutoff = mean + deviation * NormalDist().inv_cdf(share)
    return jnp.maximum(x - cutoff[..., None], 0).astype(gate.dtype)
