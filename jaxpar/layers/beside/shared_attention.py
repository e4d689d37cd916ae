"""Attention to the keys and values of an earlier layer (`model.keys_of`; arXiv:2405.05254, arXiv:2405.12981)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
from jaxtyping import Array, Float, PyTree

from jaxpar.config import counting
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.attention import KEY, Attention
from jaxpar.layers.attention_cache import SlotTable
from jaxpar.layers.block import Context
from jaxpar.layers.context import TokenContext
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.columns import shared_keys
from jaxpar.layers.declaration.part import Core, Elementwise, Matmuls, Part, Weights
from jaxpar.layers.ops.plain import Ops

SHARED = ("shared_key", "shared_value")
"""The keys and values as columns beside the residual stream have them."""
MADE = ("key", "value")
"""The activations that only layers with keys have."""


class SharedAttention(Attention):
    """Attention without keys and values."""

    cache = ()

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """The part of attention without all that makes keys and values."""
        part = Attention.declare(model)
        inward, *behind = (one for one in part.operations if one != Elementwise("value"))
        assert isinstance(inward, Matmuls), "a part begins with a group of matmuls"
        names = [name for name in inward.weights if name not in MADE]
        outputs = tuple(name for name in inward.outputs if name not in MADE)
        inward = replace(inward, weights=tuple(names), outputs=outputs, rotated=inward.rotated[:1])
        core = lambda one: replace(one, keys=SHARED) if isinstance(one, Core) else one
        return replace(
            part,
            weights=Weights({name: one for name, one in part.weights.items() if not name.startswith(MADE)}),
            activations=(
                *(Activation(name, KEY, cheap=True) for name in SHARED),
                *(one for one in part.activations if one.name not in MADE),
            ),
            operations=(inward, *map(Elementwise, SHARED), *map(core, behind)),
        )

    @classmethod
    def check(cls, model: ModelConfig, kind: str) -> None:
        """Refuse norms over keys of which the layer has none."""
        if model.qk_norm == "projection":
            raise UserError(
                f"{key_of(kind, 'qk_norm')}: projection norms queries and keys together, and {key_of(kind, 'keys_of')} "
                "leaves the layer without keys; expected another"
            )

    def paged(self, capacity: int) -> bool:
        """It has no cache."""
        del capacity
        return False

    def mix(self, projected: Sequence[jax.Array], context: Context) -> Float[Array, "batch seq heads head_dim"]:
        """Attention of the queries to the keys and values of the earlier layer."""
        (q,) = projected
        kind = self.model.keys_of
        assert kind is not None and context.beside is not None, "a layer that shares keys"
        k, v = shared_keys(context.beside[kind], counting.head_dim(self.model))
        k, v = self.named(k, SHARED[0]), self.named(v, SHARED[1])
        q = self.placed(self.limited(self.biased(q, "query"), "query"), "query", context.tokens)
        return self.attend(q, k, v, context)

    def decode(self, x: jax.Array, cache: PyTree, context: Context, ops: Ops) -> tuple[jax.Array, PyTree]:
        """See `Block.decode`; the cache is that of the earlier layer, which has the last token already."""
        assert context.rows is not None, "rows that are continued"
        table, source = SlotTable(self.model, context.rows), context.source

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext, *sinks: jax.Array) -> jax.Array:
            if cache is None:
                return context.attend(q, k, v, tokens, *sinks)
            return table.attend(q, lambda take: (take(source.key), take(source.value)), *sinks)

        return self(x, context._replace(attend=attend), ops)[0], ()
