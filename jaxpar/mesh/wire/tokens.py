"""The exchange of tokens between expert ranks in two levels."""

from __future__ import annotations

import jax
from jax import lax
from jaxtyping import Array, Shaped

from jaxpar.mesh.collectives import exchange_tokens, must_vary
from jaxpar.mesh.wire.levels import levels_of


def exchange_tokens_by_node(x: Shaped[Array, "rows ..."], node_devices: int) -> Shaped[Array, "rows ..."]:
    """`exchange_tokens` in two steps, with the same bits: inside each node to the rank with the same place in its node
    as the receiver, then between nodes (HetuMoE, arXiv:2203.14685). It is its own inverse and derivative.

    Of n = nodes * ranks, with `ranks` in each node, a device sends between nodes as many bytes as in one step,
    `x * (nodes - 1) / nodes`, in `nodes - 1` messages and not in `(nodes - 1) * ranks`. Inside the node it sends
    `x * (ranks - 1) / ranks` in `ranks - 1` messages; in one step these are `x * (ranks - 1) / n`.
    """
    must_vary(x, ("expert",), "exchange_tokens")
    levels = levels_of(("expert",), node_devices)
    if 1 in levels:
        return exchange_tokens(x)
    with jax.named_scope("exchange_tokens"):
        parts = x.reshape(levels.nodes, levels.ranks, -1, *x.shape[1:])
        # [node of the receiver, its place, ...] to [node of the receiver, place of the sender, ...]
        inside = lax.all_to_all(parts, "expert", 1, 1, axis_index_groups=levels.inside, tiled=True)
        return lax.all_to_all(inside, "expert", 0, 0, axis_index_groups=levels.between, tiled=True).reshape(x.shape)
