"""Experts between norms, beside a feed-forward that all tokens use (Gemma 4)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Context
from jaxpar.layers.experts.declaration import EXPERT_SCALE, NORMS_OF_OUTPUTS, ROUTED_NORM, ROUTER_NORM
from jaxpar.layers.experts.feed_forward import Experts, Rows
from jaxpar.layers.experts.routing import Routing, chosen
from jaxpar.layers.norm import rms_normalize


class NormedExperts(Experts):
    """`norm(sum_i w_i expert_i(norm(stream))) + norm(shared(x))`, where the router reads another norm of the stream."""

    def __init__(self, model: ModelConfig, *arguments: Any):
        super().__init__(model, *arguments)
        self.epsilon, self.embed = model.norm_epsilon, model.embed

    def entering(self, x: Rows, context: Context) -> tuple[Rows, Rows]:
        """Norms of the residual stream; the router's over the root of the width."""
        assert context.stream is not None, "a layer has a stream"
        stream = context.stream.reshape(x.shape)
        scale = self.weight(ROUTER_NORM).astype(jnp.float32) * self.embed**-0.5
        return rms_normalize(stream, scale, self.epsilon), self._normed(stream, ROUTED_NORM)

    def weighed(self, routing: Routing) -> Routing:
        """Weights times the factors of their experts."""
        factors = jnp.broadcast_to(
            self.weight(EXPERT_SCALE).astype(jnp.float32), (len(routing.indices), self.experts.count)
        )
        factors = chosen(factors, routing.indices)
        return routing._replace(weights=routing.weights * factors)

    def joined(self, routed: Rows, shared: Rows) -> Rows:
        """The sum of the norms of both."""
        of_routed, of_shared = NORMS_OF_OUTPUTS
        return self._normed(routed, of_routed) + self._normed(shared, of_shared)

    def _normed(self, x: Rows, name: str) -> Rows:
        return rms_normalize(x, self.weight(name), self.epsilon)
