"""One decoder layer: attention and feed-forward, each with a norm before or after it or both, each added to the
residual stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxpar.config.plan import ExpertLayout, TensorOverlap
from jaxpar.config.schema import Config
from jaxpar.layers.attention import Attend
from jaxpar.layers.context import TokenContext, sequence_part
from jaxpar.layers.declaration.activations import name_activation
from jaxpar.layers.declared import PLACEMENTS, attention_class, declare_layer, feed_forward_class
from jaxpar.layers.dropout import dropout
from jaxpar.layers.experts.feed_forward import Experts
from jaxpar.layers.feed_forward.base import FeedForward
from jaxpar.layers.feed_forward.gated import Gated
from jaxpar.layers.latent_attention import LatentAttention
from jaxpar.layers.linear import Tap, untapped
from jaxpar.layers.norm import NORMS
from jaxpar.layers.report import Output, Report
from jaxpar.mesh.collective_matmul import PLAIN
from jaxpar.precision.matmul import GroupScaling, scaling_of
from jaxpar.precision.recipe import QuantisedGroups
from jaxpar.precision.seen import Seen
from jaxpar.precision.squares import SquareScales

ELEMENTWISE: Mapping[str, Literal["input", "gradients"]] = {"mlp_in": "gradients", "mlp_out": "input"}
"""The groups of matmuls around a gated feed-forward's elementwise work, and what of each that work or its derivative
makes (`GroupScaling.elementwise`)."""


class DecoderLayer(nnx.Module):
    """Attention and feed-forward. Between them a rank holds its part of the sequence; inside, of heads and hidden."""

    def __init__(
        self,
        config: Config,
        mlp_tiles: int = 1,
        overlap: Mapping[str, TensorOverlap] | None = None,
        experts: ExpertLayout | None = None,
        fp8: QuantisedGroups | None = None,
    ):
        model = config.model
        self.activations = declare_layer(model).activations
        self.norms_before, self.norms_behind = PLACEMENTS[model.norm_placement]
        self.attention, feed_forward = attention_class(model)(model, config.lora), feed_forward_class(model)
        dense = model.experts is None
        self.mlp = feed_forward(model, config.lora) if dense else Experts(config, feed_forward, experts)
        norm = NORMS[model.norm]
        if self.norms_before:
            self.attention_norm, self.mlp_norm = norm(model), norm(model)
        if self.norms_behind:
            self.post_attention_norm, self.post_mlp_norm = norm(model), norm(model)
        self.mlp_tiles, self.overlap, self.fp8 = mlp_tiles, dict(overlap or {}), fp8
        self.dropout = model.dropout
        self.reports: tuple[str, ...] = self.mlp.reports if isinstance(self.mlp, Experts) else ()

    def linear(
        self,
        name: str,
        x: jax.Array,
        index: Int[Array, ""],
        scales: Float[Array, "layers tensors"] | None = None,
        weight_scales: Float[Array, "layers tensors"] | SquareScales | None = None,
        unseen: Seen | None = None,
        whole: bool = False,
    ) -> Any:
        """A group of matmuls with the collectives around it: linear in the layer's matrices, and in `x`.

        `index` and `unseen` are as in `__call__`, `scales` and `weight_scales` as in `TokenContext`, for groups that
        are quantised. `whole` is whether the elementwise work beside it has its derivative in the same backward.
        """
        scaling = self._scaling(name, index, scales, weight_scales, unseen, whole)
        for part in (self.attention, self.mlp):
            if isinstance(part, Experts):
                continue
            inward, *inside, outward = part.part.groups
            if name == inward.name:
                return part.project_in(x, self.overlap.get(name, PLAIN), scaling)
            if name == outward.name:
                return part.project_out(x, self.overlap.get(name, PLAIN), scaling)
            if name in [group.name for group in inside]:
                assert isinstance(part, LatentAttention), "other parts have matmuls in and out alone"
                return part.project_inside(name, x, self.overlap.get(name, PLAIN), scaling)
        raise AssertionError(f"a decoder layer has no matmuls named {name!r}")

    def _scaling(
        self,
        name: str,
        index: jax.Array,
        scales: jax.Array | None,
        weight_scales: jax.Array | SquareScales | None,
        unseen: Seen | None,
        whole: bool = False,
    ) -> GroupScaling | None:
        if self.fp8 is None:
            return None
        found = scaling_of(self.fp8, name, index, scales, weight_scales, unseen)
        if found is None or not whole or not self._fuses:
            return found
        # Scales that are found from gradients need these in memory; branches and counts read them there.
        if found.scales is None or found.exact is not None or found.counted is not None:
            return found
        return found._replace(elementwise=ELEMENTWISE.get(name))

    @property
    def _fuses(self) -> bool:
        """Whether the feed-forward is gated, and its matmuls in are all quantised and in no ring."""
        if self.fp8 is None or not isinstance(self.mlp, Gated):
            return False
        inward = self.mlp.part.groups[0]
        plain = all(self.overlap.get(name, PLAIN).algorithm == "plain" for name in ELEMENTWISE)
        return plain and self.fp8.groups.get(inward.name) == inward.weights

    def _activated(self, mlp: FeedForward, hidden: tuple[jax.Array, ...], scaling: GroupScaling | None) -> jax.Array:
        """The input of a feed-forward's matmul out, given the outputs of those in and how these are scaled."""
        if scaling is None or scaling.elementwise is None or scaling.observed is None:
            return mlp.activate(*hidden)
        assert isinstance(mlp, Gated), "of others nothing is seen here"
        return mlp.activate(*hidden, unseen=scaling.observed[-len(hidden) :])

    def __call__(
        self,
        x: Float[Array, "batch part embed"],
        index: Int[Array, ""],
        tokens: TokenContext,
        attend: Attend,
        train: bool,
        tap: Tap = untapped,
        unseen: Seen | None = None,
    ) -> Output:
        """`index` is the layer's number in the whole model; `part` is sequence length / (context * tensor).

        `unseen` are zeros, whose cotangent is what is seen of each tensor that a quantised matmul has.
        """
        given = index, tokens.scales, tokens.weight_scales, unseen
        whole = tap is untapped
        linear = lambda name, x: self.linear(name, x, *given, whole)
        h = self._named(self.attention_norm(x), "attention_input") if self.norms_before else x
        h = self.attention(h, tokens, attend, lambda name, x: tap(name, linear, x))
        if self.norms_behind:
            # The norm's derivative needs its input, and from that elementwise work recomputes the residual stream.
            h = self.post_attention_norm(self._named(h, "attention_projected"))
        x = x + self._drop(h, 2 * index + 1, tokens, train)
        if not self.norms_behind:
            x = self._named(x, "attention_residual")
        h = self._named(self.mlp_norm(x) if self.norms_before else x, "mlp_input")
        report: Report = {}
        if isinstance(self.mlp, Experts):
            scaling = lambda name: self._scaling(name, index, tokens.scales, tokens.weight_scales, unseen)
            h, report = self.mlp(h, index, tokens, train, scaling)
        elif self.mlp_tiles == 1:
            hidden = tap("mlp_in", linear, h)
            h = self._activated(self.mlp, hidden, self._scaling("mlp_in", *given, whole))
            h = self.mlp.add_bias(tap("mlp_out", linear, h))
        else:
            assert tap is untapped, "a backward that is split keeps the hidden activations of all tokens"
            assert self.fp8 is None, "a tile would have scales of its own"
            h = self.mlp.add_bias(self.mlp.in_tiles(h, self.mlp_tiles, self.overlap))
        if self.norms_behind:
            h = self.post_mlp_norm(self._named(h, "mlp_projected"))
        return x + self._drop(h, 2 * index + 2, tokens, train), report

    def _named(self, x: jax.Array, name: str) -> jax.Array:
        return name_activation(x, name, self.activations)

    def _drop(self, x: jax.Array, site: jax.Array, tokens: TokenContext, train: bool) -> jax.Array:
        if not train or self.dropout == 0.0:
            return x
        assert tokens.seed is not None, "training has a seed"
        indices = sequence_part(tokens.indices)
        return dropout(x, self.dropout, seed=tokens.seed, site=site, examples=tokens.examples, indices=indices)
