"""One decoder layer: attention and feed-forward, each with a norm before or after it or both, each added to the
residual stream."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxpar.config.plan import ExpertLayout
from jaxpar.config.schema import Config
from jaxpar.layers.block import Attend, Block, Context
from jaxpar.layers.context import TokenContext, sequence_part
from jaxpar.layers.declaration.activations import name_activation
from jaxpar.layers.declared import PLACEMENTS, blocks_of, declare_layer
from jaxpar.layers.dropout import dropout
from jaxpar.layers.norm import NORMS
from jaxpar.layers.ops.plain import Ops, Tapped
from jaxpar.layers.report import Output
from jaxpar.runtime.batch import Field, union
from jaxpar.runtime.observed import Observed
from jaxpar.runtime.taps import Tap

PLAIN_OPS = Ops()


class DecoderLayer(nnx.Module):
    """Attention and feed-forward. Between them a rank holds its part of the sequence; inside, of heads and hidden."""

    def __init__(self, config: Config, mlp_tiles: int = 1, experts: ExpertLayout | None = None, ops: Ops = PLAIN_OPS):
        model = config.model
        self.activations = declare_layer(model).activations
        self.norms_before, self.norms_behind = PLACEMENTS[model.norm_placement]
        self.attention, self.mlp = blocks_of(model, config.lora, experts, mlp_tiles)
        norm = NORMS[model.norm]
        if self.norms_before:
            self.attention_norm, self.mlp_norm = norm(model), norm(model)
        if self.norms_behind:
            self.post_attention_norm, self.post_mlp_norm = norm(model), norm(model)
        self.ops, self.dropout = ops, model.dropout
        self.reports: tuple[str, ...] = tuple(name for block in self.blocks for name in block.reports)
        self.fields: tuple[Field, ...] = union(*(block.fields for block in self.blocks))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks, in order."""
        return self.attention, self.mlp

    def linear(self, name: str, x: jax.Array, index: Int[Array, ""], tokens: TokenContext) -> Any:
        """A group of matmuls with the collectives around it: linear in the layer's matrices, and in `x`. For a backward
        that computes the weights' gradients later."""
        ops = self.ops.of_layer(index, tokens, None, split=True)
        (block,) = (one for one in self.blocks if name in [group.name for group in one.part.groups])
        return ops.run(block, name, x)

    def __call__(
        self,
        x: Float[Array, "batch part embed"],
        index: Int[Array, ""],
        tokens: TokenContext,
        attend: Attend,
        train: bool,
        tap: Tap | None = None,
        observed: Observed | None = None,
    ) -> Output:
        """`index` is the layer's number in the whole model; `part` is sequence length / (context * tensor).

        `observed` are zeros, whose cotangents are what the layer's matmuls observe.
        """
        ops = self.ops.of_layer(index, tokens, observed, split=tap is not None)
        if tap is not None:
            ops = Tapped(ops=ops, tap=tap)
        context = Context(index, tokens, attend, train)
        h = self._named(self.attention_norm(x), "attention_input") if self.norms_before else x
        h, report = self.attention(h, context, ops)
        if self.norms_behind:
            # The norm's derivative needs its input, and from that elementwise work recomputes the residual stream.
            h = self.post_attention_norm(self._named(h, "attention_projected"))
        x = x + self._drop(h, 2 * index + 1, tokens, train)
        if not self.norms_behind:
            x = self._named(x, "attention_residual")
        h = self._named(self.mlp_norm(x) if self.norms_before else x, "mlp_input")
        h, more = self.mlp(h, context, ops)
        if self.norms_behind:
            h = self.post_mlp_norm(self._named(h, "mlp_projected"))
        return x + self._drop(h, 2 * index + 2, tokens, train), {**report, **more}

    def _named(self, x: jax.Array, name: str) -> jax.Array:
        return name_activation(x, name, self.activations)

    def _drop(self, x: jax.Array, site: jax.Array, tokens: TokenContext, train: bool) -> jax.Array:
        if not train or self.dropout == 0.0:
            return x
        assert tokens.seed is not None, "training has a seed"
        indices = sequence_part(tokens.indices)
        return dropout(x, self.dropout, seed=tokens.seed, site=site, examples=tokens.examples, indices=indices)
