"""What all feed-forwards have in common: matmuls with their hidden width split over the tensor axis, and tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxpar.config.plan import TensorOverlap
from jaxpar.config.schema import LoraConfig, ModelConfig
from jaxpar.layers.declaration.activations import name_activation
from jaxpar.layers.declaration.part import Matmuls, Part, Weights, matrix, vector
from jaxpar.layers.declaration.weights import declare_weights
from jaxpar.layers.lora import OFF, adapted, is_trained
from jaxpar.layers.low_rank import factored
from jaxpar.layers.projections import Matrix, matrix_of, project_in, project_out
from jaxpar.layers.tiles import over_tiles
from jaxpar.mesh.collective_matmul import PLAIN
from jaxpar.mesh.parameters import Arrays, select
from jaxpar.precision.matmul import GroupScaling

NO_OVERLAP: Mapping[str, TensorOverlap] = {}

_over_tiles: Any = over_tiles  # which type checkers do not see through `custom_vjp` of a partial

HIDDEN = ("mlp",)
"""Dims of a hidden activation."""
OUT = Matmuls("mlp_out", ("down",), inward=False, input="mlp_hidden")
"""The matmul back into the residual stream."""


def hidden_weights(model: ModelConfig, *inward: str) -> Weights:
    """Matrices `inward` [embed, mlp] and `down` [mlp, embed], with biases where the model has them."""
    wide, back = (model.embed, model.mlp), model.init_scale / (2 * model.layers) ** 0.5
    weights = {name: matrix(wide, ("embed", "mlp"), scale=model.init_scale) for name in inward}
    weights["down"] = matrix(wide[::-1], ("mlp", "embed"), scale=back)
    if model.mlp_bias:
        weights |= {f"{name}_bias": vector((model.mlp,), HIDDEN) for name in inward}
        weights["down_bias"] = vector((model.embed,), ("norm",))
    return factored(weights, model.low_rank)


class FeedForward(nnx.Module, ABC):
    """`down(activate(x @ W for each inward W))`. A feed-forward declares its part and defines `activate`."""

    def __init__(self, model: ModelConfig, lora: LoraConfig = OFF):
        self.part, self.lora = adapted(self.declare(model), lora), lora
        declare_weights(self, self.part.weights)

    @staticmethod
    @abstractmethod
    def declare(model: ModelConfig) -> Part:
        """The part, with weights as `hidden_weights` makes them."""

    @abstractmethod
    def activate(self, *hidden: jax.Array) -> Float[Array, "batch seq mlp"]:
        """From the output of `project_in` to the input of `project_out`: biases and the non-linearity, named."""

    def named(self, x: jax.Array, name: str) -> jax.Array:
        """`x` as an activation of the part."""
        return name_activation(x, name, self.part.activations)

    def biased(self, x: Float[Array, "batch seq mlp"], weight: str) -> Float[Array, "batch seq mlp"]:
        """The output of the matrix `weight`, with its bias if it has one."""
        return x + getattr(self, f"{weight}_bias")[...] if f"{weight}_bias" in self.part.weights else x

    def project_in(
        self, x: Float[Array, "batch part embed"], overlap: TensorOverlap, scaling: GroupScaling | None = None
    ) -> tuple[jax.Array, ...]:
        """Matmuls of the joined sequence with this rank's hidden columns, in the order of the part; no biases."""
        return project_in(x, [self._matrix(name) for name in self.part.groups[0].weights], overlap, scaling)

    def project_out(
        self, x: Float[Array, "batch seq mlp"], overlap: TensorOverlap, scaling: GroupScaling | None = None
    ) -> Float[Array, "batch part embed"]:
        """Sums over the tensor ranks; the bias of `down` is added by `add_bias`."""
        return project_out(x, self._matrix("down"), overlap, scaling)

    def _matrix(self, name: str) -> Matrix:
        """A matrix or its two factors, with those of `lora` if it has any."""
        return matrix_of(self.part, name, lambda name: getattr(self, name)[...], self.lora)

    def in_tiles(
        self, x: Float[Array, "batch part embed"], tiles: int, overlap: Mapping[str, TensorOverlap] = NO_OVERLAP
    ) -> Float[Array, "batch part embed"]:
        """All but the output bias, collectives included, for `ceil(batch * part / tiles)` tokens of a rank at a time.

        Each tile runs the collectives for its own tokens, so that neither the joined sequence nor the partial sums,
        `tensor` times as large as `x`, exist whole. Sends what one tile would: forward `gather_sequence` and
        `scatter_sequence`;
        backward two of the former (the input again, the gradient of the output) and one of the latter.
        """
        graph, state = nnx.split(self)
        into, out = (overlap.get(group.name, PLAIN) for group in self.part.groups)

        def block(weights: Arrays, frozen: Arrays, x: jax.Array) -> jax.Array:
            mlp: FeedForward = nnx.merge(graph, weights | frozen)
            return mlp.project_out(mlp.activate(*mlp.project_in(x, into)), out)

        trains = {name: is_trained(name, self.lora) for name in self.part.weights}
        halves = (select(nnx.to_pure_dict(state), trains, wanted) for wanted in (True, False))
        return _over_tiles(block, *halves, x, tiles)

    def add_bias(self, x: Float[Array, "batch part embed"]) -> Float[Array, "batch part embed"]:
        """Add the output bias, after the partial sums of the tensor ranks are summed: once, not once per rank."""
        return self.biased(x, "down")
