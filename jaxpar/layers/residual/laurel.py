"""A learned residual of low rank beside the mixer (`model.laurel_rank`; LAuReL, arXiv:2411.07501)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Block, Context
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.part import Matmuls, Part, Weights, matrix
from jaxpar.layers.ops.plain import Ops
from jaxpar.runtime.passes import Output

NAME = "laurel"
RANK = (NAME,)


class LearnedResidual(Block):
    """`right(left(x))` of the mixer's input x. The layer adds its norm and x to the stream behind the mixer, and
    divides the sum by the root of 2."""

    wide_gradients = True

    def __init__(self, model: ModelConfig, part: Part | None = None):
        super().__init__(part or self.declare(model))

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Two matrices, whose rank tensor ranks split."""
        assert model.laurel_rank is not None, "a model with a learned residual"
        wide, back = (model.embed, model.laurel_rank), model.init_scale / (2 * model.layers) ** 0.5
        return Part(
            name=NAME,
            weights=Weights(
                left=matrix(wide, ("embed", *RANK), scale=model.init_scale),
                right=matrix(wide[::-1], (*RANK, "embed"), scale=back),
            ),
            activations=(Activation("laurel_inside", RANK),),
            operations=(
                Matmuls("laurel_in", ("left",), inward=True, outputs=("laurel_inside",)),
                Matmuls("laurel_out", ("right",), inward=False, input="laurel_inside"),
            ),
            dims=((NAME, model.laurel_rank),),
            norms=(False, True),
        )

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """The product of the mixer's input, before its norm."""
        (inside,) = ops.run(self, "laurel_in", x)
        return ops.run(self, "laurel_out", self.named(inside, "laurel_inside")), {}


def with_learned(
    x: Float[Array, "batch part embed"], entered: Float[Array, "batch part embed"], h: Float[Array, "batch part embed"]
) -> Float[Array, "batch part embed"]:
    """The residual stream behind the mixer with the mixer's input and the norm of what the block made of it."""
    total = x.astype(jnp.float32) + entered.astype(jnp.float32) + h.astype(jnp.float32)
    return (total * 0.5**0.5).astype(x.dtype)
