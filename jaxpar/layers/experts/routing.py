"""What a router is: a pure float32 function from logits and state to experts, their weights, and statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.layers.context import TokenContext, sequence_part
from jaxpar.mesh.collectives import join_ranks

type Logits = Float[Array, "tokens experts"]

NO_EXPERT = -1
"""Stands for an expert in `Routing.indices` where a token uses fewer than there is room for."""


TOKEN_AXES = ("replica", "fsdp", "expert", "context", "tensor")
"""Axes whose ranks have different tokens of a microbatch."""


class TokenOrder(NamedTuple):
    """The order by example, and by index in it: the same on every rank, and on every layout."""

    order: Int[Array, " all_tokens"]
    """The index of the token at each position, among the tokens of all ranks in the order of ranks."""
    places: Int[Array, " tokens"]
    """The place of each token of this rank."""

    @classmethod
    def of(cls, tokens: TokenContext) -> Self:
        """The order of the tokens of a microbatch."""
        indices = sequence_part(tokens.indices)
        examples = jnp.broadcast_to(tokens.examples[:, None], indices.shape)
        keys = join_ranks(jnp.stack([examples.ravel(), indices.ravel()], axis=1), TOKEN_AXES)
        order = jnp.lexsort((keys[:, 1], keys[:, 0]))
        first = lax.axis_index(TOKEN_AXES) * indices.size
        return cls(order, lax.dynamic_slice_in_dim(jnp.argsort(order), first, indices.size))

    def whole(self, x: Shaped[Array, " tokens *rest"]) -> Shaped[Array, " all_tokens *rest"]:
        """`x` of the tokens of all ranks, in order, without a derivative."""
        return join_ranks(lax.stop_gradient(x), TOKEN_AXES)[self.order]

    def own(self, x: Shaped[Array, " all_tokens *rest"]) -> Shaped[Array, " tokens *rest"]:
        """This rank's part of `x`, which is in order."""
        return x[self.places]


class RouterState(NamedTuple):
    """What some routers take in addition to logits."""

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
    counts: Bool[Array, " tokens"] | None = None
    """Which tokens count; the others pad rows."""
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
    """What each token adds to the sums over the batch from which the losses are computed."""


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
    return jnp.einsum("te,tke->tk", values, ones_at(indices, values.shape[-1]), precision="highest")


def ones_at(indices: Int[Array, "tokens chosen"], experts: int) -> Float[Array, "tokens chosen experts"]:
    """1 at the experts that are chosen, and 0 at the others."""
    return jax.nn.one_hot(indices, experts, dtype=jnp.float32)


def selected(state: RouterState, values: Logits, number: int) -> Int[Array, "tokens number"]:
    """The experts to replay, or those with the largest values."""
    return largest(values, number) if state.replay is None else state.replay


def largest(values: Logits, number: int) -> Int[Array, "tokens number"]:
    """The experts with the largest values, the largest first; of equal ones the first."""
    return jax.lax.top_k(jax.lax.stop_gradient(values), number)[1]
