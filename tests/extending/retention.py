"""Retention (Sun et al. 2023, arXiv:2307.08621): a mixer with a state, from outside the package.

    python -m tests.extending.retention --config configs/quickstart.yaml --set model.mixer=retention

trains as `python -m jaxpar.train` does. A head h has a state S, which decays by 1 - 2^(-5 - h) with each token:
S' = decay * S + k v^T, and its output is q S'. The output is normed by head and gated. A document begins with S = 0.
"""

import sys

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.config.counting import head_dim, kv_heads
from jaxpar.config.errors import UserError
from jaxpar.config.parts import MIXERS
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import CACHED_ROWS, Block, Context
from jaxpar.layers.context import TokenContext
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.part import Elementwise, Matmuls, Part, Recurrence, Traffic, Weights, matrix
from jaxpar.layers.norm import rms_normalize
from jaxpar.layers.ops.plain import Ops
from jaxpar.layers.rope import rotate
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_context, reduce_sum
from jaxpar.runtime.passes import Output

CHUNK = 64
"""At most so many tokens are multiplied with each other."""
HEADS = ("heads", "head_dim")
MADE = ("retention_query", "retention_key", "retention_value", "retention_gate")
type State = Float[Array, "batch heads key value"]


class Retention(Block):
    """Multi-scale retention, in chunks; context ranks exchange their states once (LASP-2, arXiv:2502.07563)."""

    order = "contiguous"
    cache = PartitionSpec(CACHED_ROWS, "tensor", "context")  # [batch, heads, context, key, value]: each rank has a copy

    def __init__(self, model: ModelConfig, part: Part | None = None):
        super().__init__(part or self.declare(model))
        self.heads, self.epsilon = model.heads, model.norm_epsilon

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Refuse shared keys, which retention does not have. Raises `UserError`."""
        if kv_heads(model) != model.heads:
            raise UserError(f"model.kv_heads: {model.kv_heads}; expected null, as retention has a key for each head")

    @staticmethod
    def declare(model: ModelConfig) -> Part:
        """Four matrices inward and one outward; a token updates and reads a state of each head."""
        width, scale = head_dim(model), model.init_scale
        inward = matrix((model.embed, model.heads, width), ("embed", *HEADS), scale=scale)
        back = matrix((model.heads, width, model.embed), (*HEADS, "embed"), inputs=2, scale=scale)
        names, state = ("query", "key", "value", "gate"), model.heads * width**2
        return Part(
            name="retention",
            weights=Weights(dict.fromkeys(names, inward) | {"output": back}),
            activations=(
                *(Activation(name, HEADS) for name in MADE),
                Activation("retention_output", HEADS, core=True),
                Activation("retention_gated", HEADS, cheap=True),
            ),
            operations=(
                Matmuls("retention_in", names, inward=True, outputs=MADE, by_head=True),
                Recurrence(
                    ("retention_output",),
                    flops=4 * state,
                    chunked=4 * state + 4 * CHUNK * model.heads * width,
                    sent=4 * state,
                ),
                Elementwise("retention_gated", traffic=Traffic(3, 5)),
                Matmuls("retention_out", ("output",), inward=False, input="retention_gated"),
            ),
        )

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """Projections, retention, and the gated output."""
        q, k, v, gate = self._projected(x, context.tokens, ops)
        out = _in_chunks(q, k, v, self._decay(q), context.tokens)
        return self._gated(out, gate, ops), {}

    def decode(self, x: jax.Array, cache: PyTree, context: Context, ops: Ops) -> tuple[jax.Array, PyTree]:
        """See `Block.decode`; the cache is the state."""
        assert context.rows is not None, "rows that are continued"
        q, k, v, gate = self._projected(x, context.tokens, ops)
        decay = self._decay(q)
        if cache is None:
            last = context.rows.lengths[:, None] - 1 - context.tokens.indices
            state = reduce_sum(_weighted_sum(k, v, decay, last, last >= 0), ("context",))
            out = _in_chunks(q, k, v, decay, context.tokens)
        else:
            of_row = lambda x: x[0].astype(jnp.float32)  # one token of each row
            state = decay[:, None, None] * cache[:, :, 0] + jnp.einsum("bhk,bhv->bhkv", of_row(k), of_row(v))
            out = jnp.einsum("bhk,bhkv->bhv", of_row(q), state)[None]
        return self._gated(out, gate, ops), state[:, :, None]

    def _projected(self, x: jax.Array, tokens: TokenContext, ops: Ops) -> list[jax.Array]:
        q, k, v, gate = ops.run(self, "retention_in", x)
        if tokens.cos is not None and tokens.sin is not None:
            q, k = rotate(q, tokens.cos, tokens.sin), rotate(k, tokens.cos, tokens.sin)
        k = k * k.shape[-1] ** -0.5
        return [self.named(one, name) for one, name in zip((q, k, v, gate), MADE, strict=True)]

    def _decay(self, q: jax.Array) -> Float[Array, " heads"]:
        """The decay of this tensor rank's heads."""
        local = q.shape[2]
        return 1 - 2.0 ** (-5.0 - (lax.axis_index("tensor") * local + jnp.arange(local)))

    def _gated(self, out: Float[Array, "batch seq heads value"], gate: jax.Array, ops: Ops) -> jax.Array:
        out = self.named(out.astype(gate.dtype), "retention_output")
        gated = jax.nn.silu(gate) * rms_normalize(out, jnp.ones(out.shape[-1], jnp.float32), self.epsilon)
        return ops.run(self, "retention_out", self.named(gated, "retention_gated"))


def _weighted_sum(k: jax.Array, v: jax.Array, decay: jax.Array, ages: Int[Array, "batch seq"], valid: Array) -> State:
    """The state after tokens that came `ages` tokens ago; those that are not `valid` are not in it."""
    weight = jnp.where(valid[..., None], decay ** jnp.maximum(ages, 0)[..., None], 0)
    return jnp.einsum("bsh,bshk,bshv->bhkv", weight, k.astype(jnp.float32), v.astype(jnp.float32))


def _in_chunks(q: jax.Array, k: jax.Array, v: jax.Array, decay: jax.Array, tokens: TokenContext) -> jax.Array:
    """The output [batch, seq, heads, value] of this context rank's part of the rows, float32."""
    batch, length = tokens.segments.shape
    state, document = _before(k, v, decay, tokens)
    size = next(size for size in range(min(CHUNK, length), 0, -1) if length % size == 0)
    ages = jnp.arange(size)[:, None] - jnp.arange(size)
    within = jnp.where(ages[..., None] >= 0, decay ** jnp.maximum(ages, 0)[..., None], 0)
    since = decay ** jnp.arange(1, size + 1)[:, None]  # the state's age at each token

    def chunk(carry: tuple[State, jax.Array], xs: tuple[jax.Array, ...]) -> tuple[tuple[State, jax.Array], jax.Array]:
        (state, document), (q, k, v, segments) = carry, xs
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        same = segments[:, :, None] == segments[:, None, :]
        scores = jnp.einsum("bqhk,bshk->bqsh", q, k) * jnp.where(same[..., None], within, 0)
        continues = (segments == document[:, None])[..., None]
        out = jnp.einsum("bqsh,bshv->bqhv", scores, v)
        out += jnp.einsum("bqhk,bhkv,bqh->bqhv", q, state, jnp.where(continues, since, 0))
        last = segments[:, -1]
        held = jnp.where((last == document)[:, None], decay**size, 0)[..., None, None] * state
        added = _weighted_sum(k, v, decay, jnp.broadcast_to(ages[-1], segments.shape), segments == last[:, None])
        return (held + added, last), out

    cut = lambda x: jnp.moveaxis(x.reshape(batch, length // size, size, *x.shape[2:]), 1, 0)
    _, out = lax.scan(jax.checkpoint(chunk), (state, document), jax.tree.map(cut, (q, k, v, tokens.segments)))
    return jnp.moveaxis(out, 0, 1).reshape(batch, length, *out.shape[3:])


def _before(k: jax.Array, v: jax.Array, decay: jax.Array, tokens: TokenContext) -> tuple[State, jax.Array]:
    """The state before this rank's tokens and its document: that of the ranks before, gathered and added up."""
    ranks, rank, length = lax.axis_size("context"), lax.axis_index("context"), tokens.segments.shape[1]
    ends = tokens.row_segments.reshape(-1, ranks, length)[:, :, -1]
    document = ends[:, jnp.maximum(rank - 1, 0)]
    last = tokens.segments[:, -1:]
    ages = jnp.broadcast_to(jnp.arange(length)[::-1], tokens.segments.shape)
    states = gather_context(_weighted_sum(k, v, decay, ages, tokens.segments == last)[:, None])
    ranks_ago = rank - 1 - jnp.arange(ranks)
    continues = (ranks_ago >= 0) & (ends == document[:, None])
    faded = jnp.where(continues[..., None], decay ** (jnp.maximum(ranks_ago, 0) * length)[:, None], 0)
    return vary(jnp.einsum("brh,brhkv->bhkv", faded, states)), vary(document)


MIXER = "tests.extending.retention:Retention"

if __name__ == "__main__":
    from jaxpar.train import main

    MIXERS["retention"] = MIXER
    sys.exit(main())
