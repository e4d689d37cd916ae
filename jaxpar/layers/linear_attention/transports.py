"""Transports of mixers' states between context ranks: a registry, with the bytes that a device sends.

A rank's tokens map the state before them to M S + N, whatever their number. All transports give each rank the state
before its tokens; in reverse order they pass on its gradient. They have no derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.mesh.collectives import gather_context, shift_context

BLOCKS = 8
"""Parts of a state that are on their way at a time under `pipelined`, or the largest smaller divisor of its values."""

type State = Float[Array, "batch heads key value"]


class Fold(NamedTuple):
    """The effect of a context rank's tokens on the state of the document before them."""

    mapped: Float[Array, "batch heads key key"] | Float[Array, "batch heads width"]
    """M, or its diagonal: of each key dim, or one number."""
    made: State
    """N, the state that the rank's tokens add."""


class Messages(NamedTuple):
    """The messages of a transport, one after another."""

    kind: Literal["gather", "shift"]
    count: int
    size: float
    """Bytes that a gather ends with, or that a shift sends."""


@dataclass(frozen=True)
class StateTransport:
    """A way in which context ranks pass on states."""

    before: Callable[..., tuple[State, Any]]
    """Computes the state before each rank's tokens, from their effects on a state; in `reverse`, from the last rank to
    the first. It returns what is made beside the messages too, which must not depend on them."""
    messages: Callable[[float, float, int], Messages]
    """Its messages, by the bytes of M and of N on a device, and the ranks."""
    sent: Callable[[float, float, int], float]
    """Bytes that a device sends, likewise."""


def allgather[Made](fold: Fold, beside: Made, reverse: bool = False) -> tuple[State, Made]:
    """Gather M and N of all ranks in one message, and apply those of the ranks before (LASP-2, arXiv:2502.07563).

    Sends `(M + N) * (n - 1)` bytes.
    """
    numbers = jnp.concatenate([x.reshape(x.shape[0], 1, -1) for x in fold], axis=-1)
    # Without a barrier XLA puts loops that make `beside` behind the message.
    gathered, beside = lax.optimization_barrier((gather_context(numbers), beside))
    parts = jnp.split(jnp.moveaxis(gathered, 1, 0), [fold.mapped[0].size], axis=-1)
    folds = Fold(*(part.reshape(-1, *x.shape) for part, x in zip(parts, fold, strict=True)))
    following = lambda state, rank: (behind(state, rank), state)
    _, before = lax.scan(following, jnp.zeros_like(fold.made), folds, reverse=reverse)
    return before[lax.axis_index("context")], beside


def relay[Made](fold: Fold, beside: Made, reverse: bool = False, most: int = 1) -> tuple[State, Made]:
    """Pass the state from each rank to the next, in at most so many blocks of values, each as soon as it is there: one
    is LASP (arXiv:2404.02882), several are ZeCO (arXiv:2507.01004). ZeCO cuts the dims of keys, of which the delta rule
    needs all for each number of the next state; values are independent.

    Sends `N` bytes, but none from the last rank.
    """
    ranks, rank = lax.axis_size("context"), lax.axis_index("context")
    turn = ranks - 1 - rank if reverse else rank
    blocks = next(size for size in range(most, 0, -1) if fold.made.shape[-1] % size == 0)
    made = jnp.stack(jnp.split(fold.made, blocks, axis=-1))
    arrived, arrivals = jnp.zeros_like(made[0]), []
    for tick in range(ranks + blocks - 2):  # in which the rank whose turn is r sends block tick - r
        turns = [turn for turn in range(ranks - 1) if 0 <= tick - turn < blocks]
        senders = [ranks - 1 - turn if reverse else turn for turn in turns]
        block = made[jnp.clip(tick - turn, 0, blocks - 1)]
        sent = behind(arrived, Fold(fold.mapped, block))
        arrived = shift_context(sent, -1 if reverse else 1, wrap=False, senders=senders)
        arrivals.append(arrived)
    first = jnp.maximum(turn - 1, 0)  # nothing arrives at the first
    before = jnp.concatenate(list(lax.dynamic_slice_in_dim(jnp.stack(arrivals), first, blocks)), axis=-1)
    return before, beside


def behind(state: State, fold: Fold) -> State:
    """The state behind a rank's tokens, from that before them."""
    rows = fold.mapped[..., None] * state if fold.mapped.ndim < state.ndim else fold.mapped @ state
    return rows + fold.made


def transposed(fold: Fold) -> Fold:
    """The fold with the transpose of M."""
    return fold if fold.mapped.ndim < fold.made.ndim else fold._replace(mapped=fold.mapped.swapaxes(-1, -2))


def _relay_transport(blocks: int) -> StateTransport:
    hops = lambda mapped, made, ranks: Messages("shift", ranks + blocks - 2, made / blocks)
    return StateTransport(partial(relay, most=blocks), hops, lambda mapped, made, ranks: made)


TRANSPORTS: dict[str, StateTransport] = {
    "allgather": StateTransport(
        allgather,
        lambda mapped, made, ranks: Messages("gather", 1, (mapped + made) * ranks),
        lambda mapped, made, ranks: (mapped + made) * (ranks - 1),
    ),
    "ring": _relay_transport(1),
    "pipelined": _relay_transport(BLOCKS),
}
"""The transports by their name in `parallel.overlap.state_messages`."""
