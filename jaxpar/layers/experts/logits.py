"""The logits of routers, in float32: a rounded one would choose another expert."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.layers.block import Block
from jaxpar.layers.experts.routing import Router

FIRST_TEMPERATURE = 0.07
"""Divisor of the cosines before training (X-MoE); its factor is learned."""


def logits_of(block: Block, x: Float[Array, "tokens embed"], name: str) -> Float[Array, "tokens experts"]:
    """`x` times the weight `name`, with its bias."""
    x, w = x.astype(jnp.float32), block.weight(name).astype(jnp.float32)
    logits = jnp.matmul(x, w, precision="highest")
    if f"{name}_bias" in block.part.weights:
        logits = logits + block.weight(f"{name}_bias").astype(jnp.float32)
    return block.named(logits, f"{name}_logits")


def router_logits(block: Block, x: Float[Array, "tokens embed"], kind: Router) -> Float[Array, "tokens experts"]:
    """The logits of a router; of one that learns nothing, a scalar."""
    if not kind.learned:
        return jnp.zeros(())
    if not kind.cosine:
        return logits_of(block, x, "router")
    projection, router = (block.weight(name).astype(jnp.float32) for name in ("projection", "router"))
    projected = jnp.matmul(x.astype(jnp.float32), projection, precision="highest")
    unit = lambda a, axis: a * lax.rsqrt(jnp.sum(jnp.square(a), axis, keepdims=True) + 1e-12)
    tokens, experts = unit(block.named(projected, "router_projected"), 1), unit(router, 0)
    temperature = FIRST_TEMPERATURE * jnp.exp(block.weight("temperature").astype(jnp.float32))
    return block.named(jnp.matmul(tokens, experts, precision="highest") / temperature, "router_logits")
