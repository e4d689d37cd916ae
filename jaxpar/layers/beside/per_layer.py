"""The block that adds the inputs of a layer to the residual stream (`model.per_layer_embeddings`)."""

from __future__ import annotations

import jax
from jax import lax
from jaxtyping import Array, Float

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Block, Context
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.columns import INPUTS
from jaxpar.layers.declaration.part import Elementwise, Matmuls, Part, Traffic, Weights, matrix
from jaxpar.layers.ops.plain import Ops
from jaxpar.mesh.collectives import gather_sequence
from jaxpar.runtime.passes import Output

NAME = "per_layer"
WIDTH = (NAME,)
GATE, PROJECTION = "per_layer_gate", "per_layer_projection"


class PerLayerInput(Block):
    """`projection(gelu(gate(x)) * inputs)`, whose norm the layer adds to the residual stream."""

    wide_gradients = True

    def __init__(self, model: ModelConfig, part: Part | None = None):
        super().__init__(part or self.declare(model))
        assert model.per_layer_embeddings is not None, "a model whose layers have inputs"
        self.width = model.per_layer_embeddings.width

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Tensor ranks split the width of the inputs; a norm is behind the block whatever the placement of others."""
        assert model.per_layer_embeddings is not None, "a model whose layers have inputs"
        width, back = model.per_layer_embeddings.width, model.init_scale / (2 * model.layers) ** 0.5
        return Part(
            name=NAME,
            weights=Weights(
                {
                    GATE: matrix((model.embed, width), ("embed", *WIDTH), scale=model.init_scale),
                    PROJECTION: matrix((width, model.embed), (*WIDTH, "embed"), scale=back),
                }
            ),
            activations=(Activation("per_layer_gated", WIDTH), Activation("per_layer_hidden", WIDTH, cheap=True)),
            operations=(
                Matmuls("per_layer_in", (GATE,), inward=True, outputs=("per_layer_gated",)),
                Elementwise("per_layer_hidden", traffic=Traffic(3, 5)),
                Matmuls("per_layer_out", (PROJECTION,), inward=False, input="per_layer_hidden"),
            ),
            dims=(("per_layer", width),),
            norms=(False, True),
        )

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """The summand before its norm."""
        (gate,) = ops.run(self, "per_layer_in", x)
        gate = jax.nn.gelu(self.named(gate, "per_layer_gated"), approximate=True)
        hidden = self.named(gate * self._inputs(context), "per_layer_hidden")
        return ops.run(self, "per_layer_out", hidden), {}

    def _inputs(self, context: Context) -> Float[Array, "batch seq local"]:
        """This tensor rank's share of the layer's inputs, of the joined sequence."""
        assert context.beside is not None, "a layer has the columns beside its stream"
        inputs = lax.dynamic_slice_in_dim(context.beside[INPUTS], context.index * self.width, self.width, axis=-1)
        local = self.width // lax.axis_size("tensor")
        return lax.dynamic_slice_in_dim(gather_sequence(inputs), lax.axis_index("tensor") * local, local, axis=-1)
