"""The common parts of mixers with a state: their declaration, the way from projections to an output, and decoding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from jaxpar.config.counting import head_dim
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of
from jaxpar.config.mappings.linear_attention import LinearAttentionConfig
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import CACHED_ROWS, Block, Context
from jaxpar.layers.declaration.activations import Activation
from jaxpar.layers.declaration.low_rank import factored
from jaxpar.layers.declaration.part import Elementwise, Matmuls, Part, Recurrence, Traffic, matrix, vector
from jaxpar.layers.linear_attention.context_ranks import recur
from jaxpar.layers.linear_attention.convolution import convolve, convolve_next, last_values
from jaxpar.layers.linear_attention.recurrence import CHUNK, Streams, advance
from jaxpar.layers.ops.plain import Ops
from jaxpar.mesh.collectives import gather_sequence, reduce_sum
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.runtime.passes import Output

IN, GATES, OUT = "linear_in", "linear_gates", "linear_out"
"""The groups of matmuls."""
HEAD, KEY, VALUE = ("linear_gates",), ("linear_key_heads", "linear_key"), ("linear_heads", "linear_value")
"""Dims of a number of each head, of a query or key, and of a value."""
QUERY, SHARED_VALUE = ("linear_heads", "linear_key"), ("linear_key_heads", "linear_value")
"""Dims of a query and of a value in mixers that have fewer heads of keys and values than of queries."""
SUFFIXES = {HEAD: "_of_head", QUERY: "_of_group", SHARED_VALUE: "_of_group"}
"""Ends of names of activations by their dims, as a name has the same dims in all mixers."""
CONVOLVED = "query", "key", "value"
"""The projections that short convolutions follow, in mixers that have them."""
CACHED = PartitionSpec(CACHED_ROWS, "tensor", "context")
"""The partition of a cached array [batch, heads, context, ...]: each context rank has a copy."""


class Sizes(NamedTuple):
    """Heads and widths of a mixer with a state, the tokens of its short convolutions, the least step of Mamba-2, and
    the epsilon of the output's norm."""

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    taps: int
    least_step: float
    norm_epsilon: float


def sizes_of(model: ModelConfig) -> Sizes:
    """The sizes of `model.linear_attention`, with those of attention where it has none."""
    linear = model.linear_attention or LinearAttentionConfig()
    heads = linear.heads or model.heads
    return Sizes(
        heads,
        linear.key_heads or heads,
        linear.key_dim or head_dim(model),
        linear.value_dim or head_dim(model),
        linear.taps,
        linear.least_step,
        linear.norm_epsilon or model.norm_epsilon,
    )


def cached_arrays(*convolved: str) -> dict[str, PartitionSpec]:
    """The partitions of the cache: of the state, and of the values that convolutions of projections reach back to."""
    return dict.fromkeys(("state", *convolved), CACHED)


class LinearAttention(Block):
    """A mixer with a state: projections, short convolutions, a recurrence, and a gated output."""

    order = "contiguous"
    reads = ("linear_attention",)
    cache = cached_arrays()
    convolved: ClassVar[tuple[str, ...]] = ()
    """The projections that a short convolution and a SiLU follow."""
    steps: ClassVar[bool] = False
    """Whether it has steps, which `least_step` limits."""
    shares_keys: ClassVar[bool] = True
    """Whether several heads of values may use a head of keys."""

    def __init__(self, model: ModelConfig, part: Part | None = None):
        super().__init__(part or self.declare(model))
        self.sizes, self.layers = sizes_of(model), model.layers
        self.epsilon = self.sizes.norm_epsilon

    @staticmethod
    @abstractmethod
    def declare(model: ModelConfig) -> Part:
        """The part of a model; see `declare_part`."""

    @abstractmethod
    def streams(self, made: Mapping[str, jax.Array], context: Context) -> Streams:
        """The recurrence's streams, from the projections and what convolutions made of them."""

    @abstractmethod
    def gated(self, out: Float[Array, "batch seq heads value"], made: Mapping[str, jax.Array]) -> jax.Array:
        """The recurrence's output after its norm and gate, float32."""

    @classmethod
    def check(cls, model: ModelConfig, kind: str) -> None:
        """Refuse heads that do not fit, sizes that are not used, and a window. Raises `UserError`."""
        sizes = sizes_of(model)
        if sizes.heads % sizes.key_heads:
            raise UserError(
                f"{key_of(kind, 'linear_attention.key_heads')}: {sizes.key_heads}; expected a divisor of its heads "
                f"({sizes.heads})"
            )
        if sizes.key_heads != sizes.heads and not cls.shares_keys:
            raise UserError(
                f"{key_of(kind, 'linear_attention.key_heads')}: {sizes.key_heads}; expected null or {sizes.heads}, as "
                f"each head of {model.mixer} decays its keys by itself"
            )
        for key, has, what in (("least_step", cls.steps, "steps"), ("taps", cls.convolved, "short convolution")):
            value, usual = getattr(sizes, key), getattr(LinearAttentionConfig, key)
            if value != usual and not has:
                raise UserError(
                    f"{key_of(kind, f'linear_attention.{key}')}: {value}, and {model.mixer} has no {what}; expected "
                    f"{usual:g}"
                )
        if model.window is not None:
            raise UserError(
                f"{key_of(kind, 'window')}: {model.window}, and {key_of(kind, 'mixer')}: {model.mixer} sees all tokens "
                "before one by its state; expected null in layers with this mixer"
            )

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """Projections, convolutions, the recurrence, and the gated output."""
        made = self._projected(x, ops)
        for name in self.convolved:
            made[name] = self._activated(convolve(made[name], self.weight(f"{name}_taps"), context.tokens), name)
        out, _ = recur(self.streams(made, context), context.tokens, context.layout)
        return self._finished(out, made, ops), {}

    def decode(self, x: jax.Array, cache: PyTree, context: Context, ops: Ops) -> tuple[jax.Array, PyTree]:
        """See `Block.decode`; the cache is the state, and the values that convolutions reach back to."""
        made = self._projected(x, ops)
        out, after = self._prompts(made, context) if cache is None else self._next(made, cache, context)
        return self._finished(out, made, ops), {name: x[:, :, None] for name, x in after.items()}

    def repeat_for_value_heads(
        self, x: Float[Array, "batch seq key_heads width"]
    ) -> Float[Array, "batch seq heads width"]:
        """Queries or keys, repeated for the heads of values that use them."""
        return jnp.repeat(x, self.sizes.heads // self.sizes.key_heads, axis=2)

    def _projected(self, x: jax.Array, ops: Ops) -> dict[str, jax.Array]:
        """The outputs of the inward groups, by weight; tensor ranks make the numbers of all heads, and take theirs."""
        made: dict[str, jax.Array] = {}
        for group in self.part.groups[:-1]:
            for weight, name, one in zip(group.weights, group.outputs, ops.run(self, group.name, x), strict=True):
                one = self.named(one, name)
                made[weight] = _local_heads(gather_sequence(one)) if group.name == GATES else one
        return made

    def _prompts(self, made: dict[str, jax.Array], context: Context) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The recurrence's output for prompts, and what generation caches behind them; convolutions change `made`."""
        assert context.rows is not None, "rows that are continued"
        lengths, after = context.rows.lengths, dict[str, jax.Array]()
        one = jnp.ones_like(context.tokens.segments), jnp.ones_like(context.tokens.row_segments)
        tokens = context.tokens._replace(segments=one[0], row_segments=one[1])  # a prompt and its padding
        for name in self.convolved:
            after[name] = last_values(made[name], tokens, lengths, self.sizes.taps)
            made[name] = self._activated(convolve(made[name], self.weight(f"{name}_taps"), tokens), name)
        valid = (tokens.indices < lengths[:, None]).astype(jnp.float32)
        without_padding = lambda x: x * valid.reshape(*valid.shape, *[1] * (x.ndim - 2))  # zeros change no state
        out, state = recur(jax.tree.map(without_padding, self.streams(made, context)), tokens, context.layout)
        last = lax.axis_index("context") == lax.axis_size("context") - 1
        return out, after | {"state": reduce_sum(jnp.where(last, state, 0), ("context",))}

    def _next(
        self, made: dict[str, jax.Array], cache: Mapping[str, jax.Array], context: Context
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The same for one more token of each row."""
        after = dict[str, jax.Array]()
        for name in self.convolved:
            new, after[name] = convolve_next(made[name][0], self.weight(f"{name}_taps"), cache[name][:, :, 0])
            made[name] = self._activated(new[None], name)
        streams = jax.tree.map(lambda x: x[0], self.streams(made, context))
        out, after["state"] = advance(streams, cache["state"][:, :, 0])
        return out[None], after

    def _activated(self, x: jax.Array, name: str) -> jax.Array:
        """A convolution's output with its bias, if it has one, and the SiLU."""
        return self.named(jax.nn.silu(self.biased(x, f"{name}_taps")), f"linear_convolved_{name}")

    def _finished(self, out: jax.Array, made: Mapping[str, jax.Array], ops: Ops) -> jax.Array:
        out = self.named(out.astype(made["value"].dtype), "linear_output")
        return ops.run(self, OUT, self.named(self.gated(out, made).astype(out.dtype), "linear_gated"))


def _local_heads(x: Float[Array, "batch seq heads"]) -> Float[Array, "batch seq local_heads"]:
    """The numbers of this tensor rank's heads."""
    local = x.shape[2] // lax.axis_size("tensor")
    return lax.dynamic_slice_in_dim(x, lax.axis_index("tensor") * local, local, axis=2)


def normalized_length(x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
    """`x` with length 1, in float32."""
    x = x.astype(jnp.float32)
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def declare_part(
    model: ModelConfig,
    inward: Mapping[str, tuple[str, ...]],
    vectors: Mapping[str, ParamSpec],
    *,
    convolved: Sequence[str] = (),
    ranks: Mapping[str, int] | None = None,
    decays: int = 1,
    delta: bool = False,
) -> Part:
    """The part of a mixer with a state.

    Args:
        model: of layers that are all alike.
        inward: the projections by name, each with the dims of what it makes.
        vectors: weights that are no matrices.
        convolved: the projections that a short convolution follows.
        ranks: projections that are products of two matrices, each with the rank between them.
        decays: log decays of a token in each head.
        delta: whether the recurrence has the delta rule.
    """
    sizes, scale = sizes_of(model), model.init_scale
    shapes = {
        HEAD: ((sizes.heads,), ("latent",)),
        KEY: ((sizes.key_heads, sizes.key_dim), ("heads", "head_dim")),
        VALUE: ((sizes.heads, sizes.value_dim), ("heads", "head_dim")),
        QUERY: ((sizes.heads, sizes.key_dim), ("heads", "head_dim")),
        SHARED_VALUE: ((sizes.key_heads, sizes.value_dim), ("heads", "head_dim")),
    }
    project = lambda dims: matrix((model.embed, *shapes[dims][0]), ("embed", *shapes[dims][1]), scale=scale)
    taps = lambda dims: vector((*shapes[dims][0], sizes.taps), (*shapes[dims][1], "norm"), uniform_taps)
    back = scale / (2 * model.layers) ** 0.5
    weights = {name: project(dims) for name, dims in inward.items()}
    weights["output"] = matrix((*shapes[VALUE][0], model.embed), (*shapes[VALUE][1], "embed"), inputs=2, scale=back)
    weights |= {f"{name}_taps": taps(inward[name]) for name in convolved}
    names = {name: f"linear_{name}{SUFFIXES.get(dims, '')}" for name, dims in inward.items()}
    wide = tuple(name for name, dims in inward.items() if dims != HEAD)
    gates = tuple(name for name, dims in inward.items() if dims == HEAD)
    made = lambda group: tuple(names[name] for name in group)
    return Part(
        name="mixer",
        weights=factored(weights | dict(vectors), {**model.low_rank, **(ranks or {})}),
        activations=(
            *(Activation(names[name], dims, between=dims == HEAD) for name, dims in inward.items()),
            *(Activation(f"linear_convolved_{name}", inward[name], cheap=True) for name in convolved),
            Activation("linear_output", VALUE),
            Activation("linear_gated", VALUE, cheap=True),
        ),
        operations=(
            Matmuls(IN, wide, inward=True, outputs=made(wide)),
            *([Matmuls(GATES, gates, inward=True, outputs=made(gates), between=True, exact=True)] if gates else []),
            *(Elementwise(f"linear_convolved_{name}", Traffic(2, 4)) for name in convolved),
            declare_recurrence(sizes, decays, delta),
            Elementwise("linear_gated", Traffic(3, 5)),
            Matmuls(OUT, ("output",), inward=False, input="linear_gated"),
        ),
        dims=(
            ("linear_heads", sizes.heads), ("linear_gates", sizes.heads), ("linear_key_heads", sizes.key_heads),
            ("linear_key", sizes.key_dim), ("linear_value", sizes.value_dim),
        ),
    )  # fmt: skip


def declare_recurrence(sizes: Sizes, decays: int, delta: bool) -> Recurrence:
    """The work of a recurrence: of a token with a state, and in chunks with the other tokens of its chunk too.

    The delta rule makes products of keys, an inverse of them (2 / 3 of a chunk's size squared for each token), and the
    product of that with keys and values. Context ranks exchange states, or maps of states (`transports.py`).
    """
    key, value = sizes.key_dim, sizes.value_dim
    state = (6 if delta else 4) * key * value
    pairs = 2 * CHUNK * (key + value)
    if delta:
        pairs += 2 * CHUNK * (2 * key + value) + 2 * CHUNK**2 // 3
    mapped = key * key if delta else decays
    return Recurrence(
        ("linear_output",),
        flops=sizes.heads * state,
        chunked=sizes.heads * (state + pairs),
        mapped=sizes.heads * 4 * mapped,
        made=sizes.heads * 4 * key * value,
    )


def uniform_taps(key: Array, shape: tuple[int, ...]) -> Float[Array, "heads width taps"]:
    """Initial taps, uniform up to 1 / sqrt(taps), as PyTorch draws them."""
    bound = shape[-1] ** -0.5
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def log_of_uniform(low: float, high: float, key: Array, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Initial logarithms of rates that are uniform between two bounds."""
    return jnp.log(jax.random.uniform(key, shape, jnp.float32, low, high))


def inverse_softplus_of_steps(key: Array, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Initial biases whose softplus is log-uniform from 0.001 to 0.1 (Mamba, arXiv:2312.00752)."""
    steps = jnp.exp(jax.random.uniform(key, shape, jnp.float32, jnp.log(1e-3), jnp.log(1e-1)))
    return steps + jnp.log(-jnp.expm1(-steps))
