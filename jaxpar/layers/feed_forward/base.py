"""The base of all feed-forwards: matmuls with their hidden width split over the tensor axis, and tiles."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import jax
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Block, Context
from jaxpar.layers.declaration.low_rank import factored
from jaxpar.layers.declaration.part import Matmuls, Part, Weights, matrix, vector
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layers.ops.plain import Ops
from jaxpar.layers.tiles import over_tiles
from jaxpar.mesh.parameters import Arrays, select
from jaxpar.runtime.passes import Output

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


class FeedForward(Block):
    """`down(activate(x @ W for each inward W))`. A feed-forward declares its part and defines `activate`."""

    wide_gradients = True
    routed_inputs: ClassVar[tuple[str, ...]] = ()
    """Matrices into the hidden width where a router chooses among several such blocks; none where it cannot."""
    sparse: ClassVar[bool] = False
    """Whether it can have sparse gates (`model.activation_sparsity`)."""

    def __init__(self, model: ModelConfig, part: Part | None = None, tiles: int = 1):
        super().__init__(part or self.declare(model))
        self.tiles = tiles
        """Tiles of tokens, of which one at a time has hidden activations."""

    @staticmethod
    @abstractmethod
    def declare(model: ModelConfig) -> Part:
        """The part, with weights as `hidden_weights` makes them."""

    @abstractmethod
    def activate(self, *hidden: jax.Array) -> Float[Array, "batch seq mlp"]:
        """Computes the input of the last matmul from the outputs of the first: biases and the non-linearity, named."""

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """Both matmuls, and the bias of the second, which is added once the partial sums of the tensor ranks are
        summed."""
        del context
        y = self._multiplied(x, ops) if self.tiles == 1 else self._forward_tiles(x, ops)
        return self.biased(y, "down"), {}

    def _multiplied(self, x: jax.Array, ops: Ops) -> jax.Array:
        inward, outward = self.part.groups
        hidden = self.activate(*ops.run(self, inward.name, x))
        return ops.run(self, outward.name, hidden)

    def _forward_tiles(self, x: Float[Array, "batch part embed"], ops: Ops) -> Float[Array, "batch part embed"]:
        """All but the output bias, collectives included, for `ceil(batch * part / tiles)` tokens of a rank at a time.

        Each tile runs the collectives for its own tokens, so that neither the joined sequence nor the partial sums,
        `tensor` times as large as `x`, exist as a whole. Sends what one tile would: forward `gather_sequence` and
        `scatter_sequence`; backward two of the former (the input again, the gradient of the output) and one of the
        latter.
        """
        # A tile would have scales of its own, and a split backward keeps hidden activations of all tokens.
        assert type(ops) is Ops and ops.tap is None, "tiles multiply plain arrays in one backward"

        def block(weights: Arrays, frozen: Arrays, x: jax.Array) -> jax.Array:
            return with_weights(self, weights | frozen)._multiplied(x, ops)

        weights = {name: self.weight(name) for name in self.part.weights}
        trained = {name: spec.trained for name, spec in self.part.weights.items()}
        halves = (select(weights, trained, wanted) for wanted in (True, False))
        return over_tiles(block, *halves, x.reshape(-1, x.shape[-1]), self.tiles).reshape(x.shape)
