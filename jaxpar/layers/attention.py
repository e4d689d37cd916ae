"""Self-attention: projections with heads split over the tensor axis, around whichever attention the plan chose."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from jaxpar.config import counting
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.attention_cache import PARTITION, KeyValues, SlotTable, is_paged
from jaxpar.layers.block import Block, Context
from jaxpar.layers.context import TokenContext
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.low_rank import factored
from jaxpar.layers.declaration.part import Core, Elementwise, Matmuls, Part, Traffic, Weights, matrix, vector
from jaxpar.layers.norm import NORMS, layer_normalize, rms_normalize, rms_normalize_heads
from jaxpar.layers.ops.plain import Matrix, Ops, matrix_of
from jaxpar.layers.rope import rotate
from jaxpar.runtime.passes import Output

QUERY, KEY = ("heads", "head_dim"), ("kv_heads", "head_dim")
"""Dims of a query, and of a key."""
NAME = "attention"
SCALED = "attention_scaled"
"""Attention's output with sinks: less where the sink of a head has a large share of the softmax."""
GATE, GATED = "attention_gate", "attention_gated"
"""The gate of attention's output, before its sigmoid, and the product."""
VALUE, OUTPUT = ("kv_heads", "value_dim"), ("heads", "value_dim")
"""Dims of a value, and of attention's output."""


class Attention(Block):
    """Multi-head attention with grouped queries (arXiv:2305.13245)."""

    reads = (
        "qk_norm", "attention_bias", "attention_scale", "attention_softcap", "attention_sinks", "attention_gate",
        "window", "causal", "chunk", "attention_temperature", "qkv_clip", "value_norm", "keys_as_values",
    )  # fmt: skip
    cache = KeyValues(PARTITION, PARTITION)

    def __init__(self, model: ModelConfig, part: Part | None = None):
        super().__init__(part or self.declare(model))
        self.model = model
        self.kv_heads, self.epsilon = counting.kv_heads(model), model.norm_epsilon
        self.normed, self.factors, self.clip = model.qk_norm, NORMS[model.norm].factors, model.qkv_clip

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Queries, keys and values are kept as attention reads them, as is attention's output.

        Norms and biases of queries and keys count as part of the kernel that rotates them.
        """
        rotated = ("query", "key") if model.position == "rope" else ()
        projected = ("query", "key") if model.keys_as_values else ("query", "key", "value")
        gates = ("gate",) if model.attention_gate else ()
        made, behind = "attention_output", list[Elementwise]()
        if model.attention_sinks:
            behind.append(Elementwise(SCALED, traffic=Traffic(2, 3)))
        if gates:
            behind.append(Elementwise(GATED, traffic=Traffic(3, 5)))
        return Part(
            name=NAME,
            weights=_weights(model),
            activations=(
                Activation("query", QUERY),
                Activation("key", KEY),
                Activation("value", VALUE),
                *(Activation(GATE, OUTPUT) for _ in gates),
                Activation("attention_output", OUTPUT, core=True),
                Activation("attention_lse", ("heads",), float32=True, core=True),
                *(Activation(one.output, OUTPUT, cheap=True) for one in behind),
            ),
            operations=(
                Matmuls(
                    "attention_in", projected + gates, inward=True, outputs=projected + (GATE,) * len(gates),
                    rotated=rotated, by_head=True,
                ),
                *([Elementwise("value")] if model.keys_as_values else []),
                # The kernels of attention give these names themselves, and keep both for their backward.
                Core("query", keys=("key", "value"), outputs=(made, "attention_lse")),
                *behind,
                Matmuls("attention_out", ("output",), inward=False, input=behind[-1].output if behind else made),
            ),
        )  # fmt: skip

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """Projections, attention and the output, with the output's bias, which is added once the partial sums of the
        tensor ranks are summed."""
        projected = ops.run(self, "attention_in", x)
        gated = GATE in self.part.groups[0].outputs
        mixed = self.mix(projected[:-1] if gated else projected, context)
        for one in projected[-1:] if gated else ():
            mixed = self.named(mixed * jax.nn.sigmoid(self.named(one, GATE)), GATED)
        y = ops.run(self, "attention_out", mixed)
        return self.biased(y, "output"), {}

    def paged(self, capacity: int) -> bool:
        """See `Block.paged`."""
        return is_paged(self.model, capacity)

    def decode(self, x: jax.Array, cache: PyTree, context: Context, ops: Ops) -> tuple[jax.Array, PyTree]:
        """See `Block.decode`; keys and values are cached as attention reads them."""
        assert context.rows is not None, "rows that are continued"
        table = SlotTable(self.model, context.rows)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, tokens: TokenContext, *sinks: jax.Array) -> jax.Array:
            nonlocal cache
            if cache is None:
                cache = KeyValues(table.filled(k, x.dtype), table.filled(v, x.dtype))
                return context.attend(q, k, v, tokens, *sinks)
            cache = KeyValues(table.stored(cache.key, k), table.stored(cache.value, v))
            keys, values = cache
            return table.attend(q, lambda take: (take(keys), take(values)), *sinks)

        y, _ = self(x, context._replace(attend=attend), ops)
        return y, cache

    def matrix(self, name: str) -> Matrix:
        """A matrix or its factors, with the key heads of this rank's queries alone."""

        def local(name: str) -> jax.Array:
            axes = self.part.weights[name].axes
            return (
                self._local_heads(self.weight(name), axes.index("kv_heads"))
                if "kv_heads" in axes
                else self.weight(name)
            )

        matrix = matrix_of(self.part, name, local)
        if name not in ("key", "value") or self.kv_heads % lax.axis_size("tensor") == 0:
            return matrix
        return matrix._replace(heads=(self.kv_heads, self._local_heads))

    def mix(self, projected: Sequence[jax.Array], context: Context) -> Float[Array, "batch seq heads head_dim"]:
        """Computes the input of the last matmul from the outputs of the first: biases, limits, norms, rotation and
        attention."""
        q, k, *v = projected
        k = self._with_bias(k, "key")
        v = self._with_bias(v[0], "value") if v else k
        q, k = self.limited(self.biased(q, "query"), "query"), self.limited(k, "key")
        v = self._clipped(self.named(v, "value"))
        v = rms_normalize(v, jnp.ones(v.shape[-1:]), self.epsilon) if self.model.value_norm else v
        if self.normed == "projection":
            of_query, of_key = (self.factors(self.weight(name)) for name in ("query_norm", "key_norm"))
            q, k = rms_normalize_heads(q, k, of_query, self._local_heads(of_key, 0), self.epsilon)
        return self.attend(self.placed(q, "query", context.tokens), self.placed(k, "key", context.tokens), v, context)

    def attend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, context: Context
    ) -> Float[Array, "batch seq heads head_dim"]:
        """Attention, with the sinks of heads if they have some."""
        if "sinks" not in self.part.weights:
            return context.attend(q, k, v, context.tokens)
        return self.named(context.attend(q, k, v, context.tokens, self.weight("sinks")), SCALED)

    def limited(self, x: jax.Array, name: str) -> jax.Array:
        """Queries or keys within their limit."""
        # The derivative of a norm or of a limit needs its input: if that is kept, only elementwise work is recomputed.
        return self._clipped(self.named(x, name) if self._early else x)

    def placed(self, x: jax.Array, name: str, tokens: TokenContext) -> jax.Array:
        """Queries or keys after the norms of their heads and their rotation, as attention reads them."""
        by_head = self.normed not in (False, "projection")
        if by_head and self.normed != "rotated":
            x = self._normalized(x, name)
        if tokens.cos is not None and tokens.sin is not None:
            x = rotate(x, tokens.cos, tokens.sin)
        if self.normed == "rotated":
            x = self._normalized(x, name)
        x = tokens.tempered(x) if name == "query" else x
        return x if self._early else self.named(x, name)

    @property
    def _early(self) -> bool:
        return bool(self.normed) or self.clip is not None

    def _with_bias(self, x: jax.Array, name: str) -> jax.Array:
        """Keys or values with the biases of this rank's heads."""
        bias = f"{name}_bias"
        return x + self._local_heads(self.weight(bias), 0) if bias in self.part.weights else x

    def _clipped(self, x: jax.Array) -> jax.Array:
        return x if self.clip is None else jnp.clip(x, -self.clip, self.clip)

    def _normalized(self, x: jax.Array, name: str) -> jax.Array:
        """Queries or keys after the norm of each head."""
        if self.normed == "unweighted":
            return rms_normalize(x, jnp.ones(x.shape[-1:]), self.epsilon)
        scale = self.factors(self.weight(f"{name}_norm"))
        if self.normed == "layernorm":
            return layer_normalize(x, self._local_heads(scale, 0) if name == "key" else scale, None, self.epsilon)
        return rms_normalize(x, scale, self.epsilon)

    def _local_heads(self, w: jax.Array, axis: int) -> jax.Array:
        """Key or value heads that this rank's query heads use.

        With at least as many heads as tensor ranks, the weight is split and this is all of it. With fewer, every rank
        holds all of them and takes the one that its query heads share.
        """
        ranks = lax.axis_size("tensor")
        if self.kv_heads % ranks == 0:
            return w
        return lax.dynamic_slice_in_dim(w, lax.axis_index("tensor") * self.kv_heads // ranks, 1, axis)


def _weights(model: ModelConfig) -> Weights:
    """Four matrices; biases of the first three or of all (`model.attention_bias`); norms of queries and keys."""
    embed, width = model.embed, counting.head_dim(model)
    query, key = (model.heads, width), (counting.kv_heads(model), width)
    back = model.init_scale / (2 * model.layers) ** 0.5
    weights = {
        "query": matrix((embed, *query), ("embed", *QUERY), scale=model.init_scale),
        "key": matrix((embed, *key), ("embed", *KEY), scale=model.init_scale),
        "output": matrix((*query, embed), (*QUERY, "embed"), inputs=2, scale=back),
    }
    if not model.keys_as_values:
        weights["value"] = matrix((embed, *key), ("embed", *KEY), scale=model.init_scale)
    if model.attention_gate:
        weights["gate"] = matrix((embed, *query), ("embed", *QUERY), scale=model.init_scale)
    if model.attention_bias:
        weights["query_bias"] = vector(query, QUERY)
        weights |= {f"{name}_bias": vector(key, KEY) for name in ("key", "value") if name in weights}
    if model.attention_bias is True:
        weights["output_bias"] = vector((embed,), ("norm",))
    if model.attention_sinks:
        weights["sinks"] = vector((model.heads,), ("heads",))
    neutral = NORMS[model.norm].neutral
    if model.qk_norm in ("projection", "layernorm"):
        weights |= {"query_norm": vector(query, QUERY, neutral), "key_norm": vector(key, KEY, neutral)}
    elif model.qk_norm in (True, "rotated"):
        weights |= {name: vector((width,), ("norm",), neutral) for name in ("query_norm", "key_norm")}
    return factored(weights, model.low_rank)
