"""A rank's own tokens for its own experts, apart from the exchange: they need no message, so that their products run
beside the first one (Comet, arXiv:2502.19811)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpar.layers.experts.lists import NONE, Places, Window, by_expert
from jaxpar.layers.experts.rows import spread
from jaxpar.mesh.wire.tokens import sent


class OwnRows(NamedTuple):
    """What a rank sends nowhere, of all slices."""

    places: Places
    """Where it is multiplied. Sources are the tokens of all slices."""
    wire: str | None
    """How what is sent is rounded, and these rows like it."""

    def of(self, x: Float[Array, "tokens embed"]) -> Float[Array, "rows embed"]:
        """The rows in the order of experts."""
        return sent(self.wire, spread, x, self.places.take, self.places.back)


def own_places(
    window: Window, gates: Float[Array, "slices tokens chosen"], rank: Int[Array, ""], ranks: int, rows: int, each: int
) -> Places:
    """Where what `rank` has in its own list is multiplied, of all slices together.

    Args:
        window: What the first round takes, stacked by slice.
        gates: Weights of the choices.
        rank: This one, of `ranks`.
        rows: Rows of a list in a round.
        each: Experts of a rank.

    Returns:
        Places whose sources are the tokens, slice by slice, and not rows.
    """
    slices, tokens, chosen = gates.shape

    def own(window: Window, gates: jax.Array) -> tuple[jax.Array, ...]:
        weights = spread(gates.reshape(-1, 1), window.assignments, window.slots)[:, 0]
        lists = (x.reshape(ranks, -1)[rank] for x in (window.expert, window.row, weights, window.tokens))
        return *lists, _row_in(window, rank, rows)

    expert, row, weights, token, row_of = jax.vmap(own)(window, gates)
    found = by_expert(expert, row, weights, rows, each, min(chosen, each))
    number = jnp.arange(slices)[:, None]
    sources = jnp.where(token >= 0, number * tokens + token, NONE).ravel()
    places = jnp.where(row_of >= 0, number * rows + row_of, NONE).reshape(-1, 1)
    take = jnp.where(found.take >= 0, sources[found.take], NONE)
    return found._replace(take=take, back=jnp.where(places >= 0, found.back[places[:, 0]], NONE))


def without_own(window: Window, rank: Int[Array, ""], ranks: int, rows: int) -> Window:
    """What is left to send, of one slice. The room of this rank's own list stays empty."""

    def others(x: jax.Array) -> jax.Array:
        lists = x.reshape(ranks, -1)
        return jnp.where(jnp.arange(ranks)[:, None] == rank, NONE, lists).ravel()

    back = jnp.where(window.back // rows == rank, NONE, window.back)
    return window._replace(tokens=others(window.tokens), back=back, expert=others(window.expert))


def _row_in(window: Window, rank: jax.Array, rows: int) -> Int[Array, " tokens"]:
    """The row of each token in the list of `rank`, or `NONE`."""
    return jnp.where(window.back // rows == rank, window.back % rows, NONE).max(axis=1)
