"""Ulysses: neighbouring ranks exchange sequence for heads, so that each attends with some heads over more of the row.

Sources: DeepSpeed Ulysses (arXiv:2309.14509); USP (arXiv:2405.07719), which runs a ring between groups of such ranks.
"""

from __future__ import annotations

from math import gcd

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.attention.backends import attend_alone
from jaxpar.attention.ring import ring
from jaxpar.attention.row import ContextAttention, RowTokens
from jaxpar.mesh.collectives import exchange_heads, exchange_sequence


def usp(
    how: ContextAttention,
    q: Float[Array, "batch part heads width"],
    k: Float[Array, "batch part kv_heads width"],
    v: Float[Array, "batch part kv_heads width"],
    row: RowTokens,
    sinks: Float[Array, " heads"] | None = None,
) -> Float[Array, "batch part heads width"]:
    """Exchange within groups of `layout.ulysses` ranks, ring between the groups; with one group this is Ulysses.

    Key and value heads are repeated where there are fewer than ranks of a group. With u ranks of a group a device
    exchanges its q, k, v (repeated) and output, `(q + k + v + out) * (u - 1) / u` bytes in the forward and as much in
    the backward; the latter again where a layer keeps local activations and not the exchanged ones. The ring of
    n / u ranks also sends what `jaxpar.attention.ring.ring` states, for the exchanged k and v.
    """
    backend, settings, layout = how
    ranks = layout.ulysses
    if sinks is not None:
        local_heads = len(sinks) // ranks  # the heads that this rank gets for its queries'
        sinks = lax.dynamic_slice_in_dim(sinks, lax.axis_index("context") % ranks * local_heads, local_heads)
    q, k, v = (exchange_heads(x, ranks) for x in (q, repeat_heads(k, ranks), repeat_heads(v, ranks)))
    if lax.axis_size("context") == ranks:
        # The rank's own heads of the whole row, whose tokens are in the order in which its ranks held them.
        everything = row._replace(indices=row.row_indices, segments=row.row_segments)
        out = attend_alone(backend, settings, q, k, v, everything.seen(settings.mask, None, None), sinks)
    else:
        out = ring(how, q, k, v, row, sinks)
    return exchange_sequence(out, ranks)


def repeat_heads(
    x: Float[Array, "batch part kv_heads width"], ranks: int
) -> Float[Array, "batch part more_heads width"]:
    """The fewest copies of each key or value head with which `ranks` ranks get equally many."""
    return jnp.repeat(x, repeats(x.shape[2], ranks), axis=2)


def repeats(kv_heads: int, ranks: int) -> int:
    """Copies of each of `kv_heads` heads that `ranks` ranks need."""
    return ranks // gcd(kv_heads, ranks)


def exchanges(heads: int, ranks: int) -> str | None:
    """None if `heads` query heads divide evenly among `ranks` ranks, otherwise the reason."""
    return None if heads % ranks == 0 else f"{heads} query heads of a device are not shared out evenly by {ranks} ranks"
