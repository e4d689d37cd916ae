"""A router: a pure float32 function from logits and state to experts, their weights, and statistics; and the auxiliary
losses of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.layers.block import Block
from jaxpar.layers.context import TokenContext, sequence_part
from jaxpar.mesh.collectives import join_ranks, reduce_sum

FIRST_TEMPERATURE = 0.07
"""Divisor of the cosines before training (X-MoE); its factor is learned."""

type Logits = Float[Array, "tokens experts"]

NO_EXPERT = -1
"""Stands for an expert in `Routing.indices` where a token uses fewer than there is room for."""


ROW_AXES = ("context", "tensor")
"""Axes whose ranks have different tokens of the same rows."""
STREAM_AXES = ("replica", "fsdp", "expert", "context", "tensor")
"""Axes whose ranks have different tokens of a microbatch."""


class TokenOrder(NamedTuple):
    """The order by example, and by index in it: the same on every rank, and on every layout."""

    order: Int[Array, " all_tokens"]
    """The index of the token at each position, among the tokens of all ranks in the order of ranks."""
    places: Int[Array, " tokens"]
    """The place of each token of this rank."""

    @classmethod
    def from_tokens(cls, tokens: TokenContext) -> Self:
        """The order of the tokens of a microbatch."""
        indices = sequence_part(tokens.indices)
        examples = jnp.broadcast_to(tokens.examples[:, None], indices.shape)
        keys = join_ranks(jnp.stack([examples.ravel(), indices.ravel()], axis=1), STREAM_AXES)
        order = jnp.lexsort((keys[:, 1], keys[:, 0]))
        first = lax.axis_index(STREAM_AXES) * indices.size
        return cls(order, lax.dynamic_slice_in_dim(jnp.argsort(order), first, indices.size))

    def gather(self, x: Shaped[Array, " tokens *rest"]) -> Shaped[Array, " all_tokens *rest"]:
        """`x` of the tokens of all ranks, in order, without a derivative."""
        return join_ranks(lax.stop_gradient(x), STREAM_AXES)[self.order]

    def local(self, x: Shaped[Array, " all_tokens *rest"]) -> Shaped[Array, " tokens *rest"]:
        """This rank's part of `x`, which is in order."""
        return x[self.places]


class RouterState(NamedTuple):
    """Inputs of some routers in addition to logits."""

    bias: Float[Array, " experts"] | None = None
    """Added to scores when experts are chosen, and to no weight."""
    noise: Logits | None = None
    """Logits of the noise's standard deviation."""
    drawn: Logits | None = None
    """Random numbers of `Router.draw`; None where nothing is drawn, as in an evaluation."""
    ids: Int[Array, " tokens"] | None = None
    """The token at each place."""
    train: bool = True
    """Whether this is training."""
    valid: Bool[Array, " tokens"] | None = None
    """A mask of the tokens that do not pad a row."""
    order: TokenOrder | None = None
    """The tokens of all ranks."""
    replay: Int[Array, "tokens chosen"] | None = None
    """Experts to use in place of those that the router would choose, as in `Routing.indices`."""
    step: Float[Array, ""] | None = None
    """Updates of the weights so far: the number of the step, from 0, without steps that changed nothing."""


class Routing(NamedTuple):
    """The experts of each token."""

    indices: Int[Array, "tokens chosen"]
    """Each expert at most once, or `NO_EXPERT`."""
    weights: Float[Array, "tokens chosen"]
    statistics: Mapping[str, Float[Array, "tokens numbers"]]
    """The terms of each token in the sums over the batch from which the losses are computed."""


class Sums(NamedTuple):
    """Sums over the tokens of a microbatch on all ranks."""

    tokens: Float[Array, ""]
    counts: Float[Array, " experts"]
    """Choices of each expert."""
    statistics: Mapping[str, Float[Array, " numbers"]]


type Loss = Callable[[Sums], Float[Array, ""]]


@dataclass(frozen=True)
class Router:
    """An entry of the registry."""

    route: Callable[[Logits, RouterState, ExpertsConfig, Any], Routing]
    """The last argument are its options, a record of `jaxpar.config.mappings.routers`."""
    loss: Loss | None
    """The loss that `balance_loss` weighs; None for routers that balance otherwise."""
    bias: bool = False
    """Whether it needs `RouterState.bias`, which is updated from the counts of the batch."""
    noise: bool = False
    """Whether it needs `RouterState.noise`."""
    draw: Callable[..., Array] | None = None
    """The distribution of `RouterState.drawn`: `jax.random.normal` and the like."""
    ids: bool = False
    """Whether it needs `RouterState.ids`."""
    anneals: bool = False
    """Whether it needs `RouterState.step`."""
    ordered: bool = False
    """Whether it needs `RouterState.order` in training, because it decides about all tokens of a microbatch."""
    cosine: bool = False
    """Whether its logits are cosines."""
    all_experts: bool = False
    """Whether a token may use all experts, so that `Routing.indices` has a column for each."""
    learned: bool = True
    """Whether it uses its logits."""
    per_token: int | None = None
    """Experts that it chooses for a token, where it is always the same number."""
    by_row: bool = True
    """Whether `sequence_loss` weighs its loss of each row."""
    normalised: bool = False
    """Whether the weights of a token are divided by their sum."""


def chosen(values: Logits, indices: Int[Array, "tokens chosen"]) -> Float[Array, "tokens chosen"]:
    """The values at `indices`; the derivative is a product with ones, without a scatter."""
    return jnp.einsum("te,tke->tk", values, expert_mask(indices, values.shape[-1]), precision="highest")


def expert_mask(indices: Int[Array, "tokens chosen"], experts: int) -> Float[Array, "tokens chosen experts"]:
    """1 at the experts that are chosen, and 0 at the others."""
    return jax.nn.one_hot(indices, experts, dtype=jnp.float32)


def selected(state: RouterState, values: Logits, k: int) -> Int[Array, "tokens k"]:
    """The experts to replay, or those with the largest values."""
    return largest(values, k) if state.replay is None else state.replay


def largest(values: Logits, k: int) -> Int[Array, "tokens k"]:
    """The experts with the largest values, the largest first; of equal ones the first."""
    return jax.lax.top_k(jax.lax.stop_gradient(values), k)[1]


# ---- losses: functions of sums over the whole microbatch, in float32. A loss of the sums of all ranks is not a sum of
# losses of ranks, so each rank reports its `share`: shares add up to the loss, and their derivatives to its derivative.


def balance_loss(sums: Sums) -> Float[Array, ""]:
    """`E * sum_e f_e P_e` of the share f of the choices and the mean probability P of each of E experts: 1 where all
    are equal (Switch Transformer, arXiv:2101.03961, equations 4-6; choices as in DeepSeekMoE, arXiv:2401.06066)."""
    shares = sums.counts / jnp.maximum(sums.counts.sum(), 1.0)
    means = sums.statistics["probabilities"] / jnp.maximum(sums.tokens, 1.0)
    return len(shares) * jnp.sum(shares * means)


def gshard_loss(sums: Sums) -> Float[Array, ""]:
    """`1/E * sum_e (c_e / S) m_e` of the tokens c whose first choice an expert is, of S, and the mean probability m
    (GShard, arXiv:2006.16668, algorithm 1)."""
    tokens = jnp.maximum(sums.tokens, 1.0)
    first, means = lax.stop_gradient(sums.statistics["first"]) / tokens, sums.statistics["probabilities"] / tokens
    return jnp.mean(first * means)


def importance_and_load_loss(sums: Sums) -> Float[Array, ""]:
    """`CV(importance)^2 + CV(load)^2`: squared coefficients of variation of the sums of gates, and of the
    probabilities with which noise would choose each expert (arXiv:1701.06538, equations 6-11)."""
    return _variation(sums.statistics["gates"]) + _variation(sums.statistics["load"])


def sam_loss(sums: Sums) -> Float[Array, ""]:
    """`balance_loss` plus the alignment loss: the sum of what probabilities outside a token's group exceed the least
    chosen one by, averaged over tokens. SAM (arXiv:2110.07431) as HetuMoE (arXiv:2203.14685) computes it, which sums
    the one over choices and the other over tokens."""
    return balance_loss(sums) + sums.statistics["misaligned"][0] / jnp.maximum(sums.tokens, 1.0)


def _variation(x: Float[Array, " experts"]) -> Float[Array, ""]:
    mean = jnp.mean(x)
    return jnp.mean(jnp.square(x - mean)) / jnp.maximum(jnp.square(mean), 1e-20)


def z_loss(logits: Logits, valid: Float[Array, " tokens"]) -> Float[Array, ""]:
    """The sum of `logsumexp(logits)^2` over the tokens that count (ST-MoE, arXiv:2202.08906, equation 5)."""
    return jnp.sum(valid * jnp.square(jax.nn.logsumexp(logits, axis=-1)))


def share(loss: Loss, local: Sums, total: Sums, ranks: int) -> Float[Array, ""]:
    """This rank's share of `loss(total)`, of which `local` are this rank's parts of the sums.

    The value is an equal share. The derivative is that of the loss at `total` with respect to `local`: no rank needs
    those of the others.
    """
    value, slopes = jax.value_and_grad(lambda statistics: loss(total._replace(statistics=statistics)))(
        lax.stop_gradient(total.statistics)
    )
    linear = sum(jnp.sum(slopes[name] * (part - lax.stop_gradient(part))) for name, part in local.statistics.items())
    return value / ranks + linear


def sequence_loss(
    indices: Int[Array, "rows part chosen"],
    probabilities: Float[Array, "rows part experts"],
    valid: Float[Array, "rows part"],
) -> Float[Array, ""]:
    """This rank's share of the sum over tokens of the `balance_loss` of their row (DeepSeek-V3, arXiv:2412.19437,
    equations 17-20). A row's tokens are all in one microbatch, so the sum does not depend on the microbatches."""
    one_hot = indices[..., None] == jnp.arange(probabilities.shape[-1])
    chosen = jnp.sum(jnp.where(one_hot, valid[..., None, None], 0.0), axis=(1, 2))
    local = Sums(valid.sum(1), chosen, {"probabilities": jnp.einsum("rt,rte->re", valid, probabilities)})
    total = jax.tree.map(lambda leaf: reduce_sum(lax.stop_gradient(leaf), ROW_AXES), local)
    of_row = lambda local, total: total.tokens * share(balance_loss, local, total, lax.axis_size(ROW_AXES))
    return jnp.sum(jax.vmap(of_row)(local, total))


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
