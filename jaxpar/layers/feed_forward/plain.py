"""Feed-forwards without a gate, `down(f(up(x)))`."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.part import Elementwise, Matmuls, Part, Traffic
from jaxpar.layers.feed_forward.base import HIDDEN, OUT, FeedForward, hidden_weights


class Plain(FeedForward):
    """A feed-forward without a gate: `non_linear` of the up projection."""

    routed_inputs = ("up",)

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Up is kept, and one kernel recomputes its non-linearity."""
        return Part(
            name="mlp",
            weights=hidden_weights(model, "up"),
            activations=(Activation("mlp_up", HIDDEN), Activation("mlp_hidden", HIDDEN, cheap=True)),
            operations=(
                Matmuls("mlp_in", ("up",), inward=True, outputs=("mlp_up",)),
                Elementwise("mlp_hidden", traffic=Traffic(2, 3)),
                OUT,
            ),
        )

    @staticmethod
    @abstractmethod
    def non_linear(up: jax.Array, /) -> jax.Array:
        """f."""

    def activate(self, *hidden: jax.Array) -> Float[Array, "batch seq mlp"]:
        """f(up), with its bias."""
        up = self.named(self.biased(hidden[0], "up"), "mlp_up")
        return self.named(self.non_linear(up), "mlp_hidden")


class GELU(Plain):
    """GELU, approximated by tanh (arXiv:1606.08415)."""

    non_linear = staticmethod(partial(jax.nn.gelu, approximate=True))


class ExactGELU(Plain):
    """GELU by the error function (GPT-NeoX, BERT)."""

    non_linear = staticmethod(partial(jax.nn.gelu, approximate=False))


class SquaredReLU(Plain):
    """The square of ReLU (arXiv:2109.08668)."""

    @staticmethod
    def non_linear(up: jax.Array) -> jax.Array:
        """ReLU, squared."""
        return jnp.square(jax.nn.relu(up))
