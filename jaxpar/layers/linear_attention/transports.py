"""How context ranks pass on the state of mixers: a registry of transports, with the bytes that a device sends.

A rank's tokens map the state before them to M S + N, whatever their number. All transports give each rank the state
before its tokens, and their derivatives send its gradient back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_context, shift_context

BLOCKS = 8
"""Parts of a state that are on their way at a time under `pipelined`, or the largest smaller divisor of its values."""

type State = Float[Array, "batch heads key value"]
type Linked = Bool[Array, "batch ranks"]
"""Whether the first token of a context rank goes on with the document before it."""


class Fold(NamedTuple):
    """The effect of a context rank's tokens on a state of their first document."""

    mapped: Float[Array, "batch heads key key"] | Float[Array, "batch heads width"]
    """M, or its diagonal: of each key dim, or one number."""
    made: State
    """N."""


class Messages(NamedTuple):
    """The messages of a transport, one after another."""

    kind: Literal["gather", "shift"]
    count: int
    size: float
    """Bytes that a gather ends with, or that a shift sends."""


@dataclass(frozen=True)
class StateTransport:
    """A way in which context ranks pass on states."""

    before: Callable[[Fold, Linked], State]
    """From what each rank's tokens do to a state, the state before them."""
    messages: Callable[[float, float, int], Messages]
    """Its messages, by the bytes of M and of N on a device, and the ranks."""
    sent: Callable[[float, float, int], float]
    """Bytes that a device sends, likewise."""


def allgather(fold: Fold, linked: Linked) -> State:
    """Gather M and N of all ranks, and apply those of the ranks before (LASP-2, arXiv:2502.07563).

    Sends `(M + N) * (n - 1)` bytes.
    """
    folds = Fold(*(gather_context(x[:, None]) for x in fold))
    ranks = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (folds, vary(linked)))
    behind = lambda state, rank: (_behind(state, *rank), state)
    _, before = lax.scan(behind, jnp.zeros_like(fold.made), ranks)
    return before[lax.axis_index("context")]


def relay(fold: Fold, linked: Linked, most: int = 1) -> State:
    """Pass the state from each rank to the next, in at most so many blocks of values, each as soon as it is there: one
    is LASP (arXiv:2404.02882), several are ZeCO (arXiv:2507.01004). ZeCO cuts the dims of keys, of which the delta rule
    needs all for each number of the next state; values are independent.

    Sends `N` bytes, but none from the last rank.
    """
    ranks, rank = lax.axis_size("context"), lax.axis_index("context")
    blocks = next(size for size in range(most, 0, -1) if fold.made.shape[-1] % size == 0)
    made = jnp.stack(jnp.split(fold.made, blocks, axis=-1))
    goes_on = vary(linked)[:, rank]
    arrived, arrivals = jnp.zeros_like(made[0]), []
    for tick in range(ranks + blocks - 2):  # in which rank r sends block tick - r
        senders = [sender for sender in range(ranks - 1) if 0 <= tick - sender < blocks]
        block = made[jnp.clip(tick - rank, 0, blocks - 1)]
        behind = _behind(arrived, Fold(fold.mapped, block), goes_on)
        arrived = shift_context(behind, 1, wrap=False, senders=senders)
        arrivals.append(arrived)
    first = jnp.maximum(rank - 1, 0)  # nothing arrives at rank 0
    return jnp.concatenate(list(lax.dynamic_slice_in_dim(jnp.stack(arrivals), first, blocks)), axis=-1)


def _behind(state: State, fold: Fold, goes_on: Bool[Array, " batch"]) -> State:
    """The state behind a rank's tokens, from that before them."""
    rows = fold.mapped[..., None] * state if fold.mapped.ndim < state.ndim else fold.mapped @ state
    return jnp.where(goes_on[:, None, None, None], rows, 0) + fold.made


def _of_relay(blocks: int) -> StateTransport:
    hops = lambda mapped, made, ranks: Messages("shift", ranks + blocks - 2, made / blocks)
    return StateTransport(partial(relay, most=blocks), hops, lambda mapped, made, ranks: made)


TRANSPORTS: dict[str, StateTransport] = {
    "allgather": StateTransport(
        allgather,
        lambda mapped, made, ranks: Messages("gather", 1, (mapped + made) * ranks),
        lambda mapped, made, ranks: (mapped + made) * (ranks - 1),
    ),
    "ring": _of_relay(1),
    "pipelined": _of_relay(BLOCKS),
}
"""Values of `parallel.overlap.state_messages`."""
