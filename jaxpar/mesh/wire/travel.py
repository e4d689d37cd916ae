"""Gathers and reductions of weights and gradients: exact or quantised, in one level or in two.

In two levels a reduction runs inside the node first and then between nodes, on what is left; a gather is its mirror
image, between nodes first: the other order would send every byte to all the devices of a node. Both send between nodes,
per device, one `ranks`-th of what one level sends (`ranks` devices of a group in each node).

A quantised reduction is an all-to-all of codes and a sum in float32. There is no other: `lax.psum_scatter` in an 8-bit
type compiles, and adds up in that type (`jaxpar.mesh.collectives.scatter_gradient` refuses it).

In the formulas `x` is the bytes of the local input, `e` its elements, `n = nodes * ranks`, and `row_bytes` that of
`codes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from jaxpar.mesh.collectives import gather_weight, must_add_up, must_vary, reduce_sum, scatter_gradient
from jaxpar.mesh.wire.agreed import agreed
from jaxpar.mesh.wire.codes import decode, encode
from jaxpar.mesh.wire.levels import Levels, RankGroups, levels_of
from jaxpar.mesh.wire.wire import WeightWire, Wire

# ---- weights


def gather_stored(x: Shaped[Array, "..."], axes: Sequence[str], dim: int, wire: Wire) -> Shaped[Array, "..."]:
    """Join the shards of a weight along `dim`, from where a step stores them, in the dtype of `x`.

    From a secondary shard this stays inside it: `x * (secondary - 1)` bytes, exact. Otherwise `x * (n - 1)` bytes or,
    quantised, `row_bytes(e) * (n - 1)`; in two levels `(nodes - 1)` parts of that between nodes, and
    `nodes * (ranks - 1)` inside.
    """
    if wire.secondary > 1:
        levels = _around_secondary(axes, wire)
        with jax.named_scope("gather_weight"):
            whole = lax.all_gather(
                _split(x, dim, levels.nodes), tuple(axes), axis=dim + 1, axis_index_groups=levels.inside
            )
            return _merged(whole, dim, 3)
    return gather_shards(x, axes, dim, wire)


def gather_shards(x: Shaped[Array, "..."], axes: Sequence[str], dim: int, wire: Wire) -> Shaped[Array, "..."]:
    """Join the shards of a weight along `dim`, all of them: `gather_stored` without a secondary shard."""
    levels = levels_of(axes, wire.node_devices if wire.hierarchical else None)
    return _gather(x, axes, dim, levels, wire.weight)


def gather_secondary(x: Shaped[Array, "..."], axes: Sequence[str], dim: int, wire: Wire) -> Shaped[Array, "..."]:
    """The part of a weight that a rank holds in a secondary shard, from its own shard and those of ranks with the same
    place in the other secondary shards, along `dim` in the order of these.

    Sends `x * (s - 1)` bytes, or quantised `row_bytes(e) * (s - 1)`, with s = n / secondary.
    """
    levels = _around_secondary(axes, wire)
    parts = _gathered(x, axes, levels.between, wire.weight) if levels.nodes > 1 else x[None]
    return _joined(parts, dim)


def secondary_parts(axes: Sequence[str], wire: Wire) -> int:
    """Shards that a rank's part of a secondary shard consists of."""
    return _around_secondary(axes, wire).nodes if wire.secondary > 1 else 1


def _around_secondary(axes: Sequence[str], wire: Wire) -> Levels:
    ranks = prod(lax.axis_size(axis) for axis in axes)
    assert ranks % wire.secondary == 0, f"secondary shards of {wire.secondary} among {ranks} ranks"
    return Levels(ranks // wire.secondary, wire.secondary)


def _gather(x: Array, axes: Sequence[str], dim: int, levels: Levels, wire: WeightWire | None) -> Array:
    if wire is None and 1 in levels:
        return gather_weight(x, axes, dim)
    must_vary(x, axes, "gather_weight")
    between = x[None] if levels.nodes == 1 else _gathered(x, axes, levels.between, wire, keep=levels.ranks > 1)
    if levels.ranks == 1:
        return _joined(between, dim)
    if levels.nodes == 1:
        return _joined(_gathered(x, axes, None, wire), dim)
    # What came from other nodes travels on as it is: codes stay codes.
    with jax.named_scope("gather_weight"):
        parts = lax.all_gather(between, tuple(axes), axis=1, axis_index_groups=levels.inside)
    parts = parts.reshape(levels.nodes * levels.ranks, *parts.shape[2:])
    return _joined(parts if wire is None else _decoded(parts, x, wire), dim)


def _gathered(
    x: Array, axes: Sequence[str], groups: RankGroups, wire: WeightWire | None, *, keep: bool = False
) -> Array:
    """The members' `x`, [member, ...]; as codes if they shall be kept."""
    with jax.named_scope("gather_weight"):
        sent = x if wire is None else encode(x.reshape(1, -1), wire)[0]
        parts = lax.all_gather(sent, tuple(axes), axis=0, axis_index_groups=groups)
        return parts if wire is None or keep else _decoded(parts, x, wire)


def _decoded(parts: Array, like: Array, wire: WeightWire) -> Array:
    with jax.named_scope("gather_weight"):
        return decode(parts, like.size, wire).astype(like.dtype).reshape(-1, *like.shape)


# ---- gradients


def scatter_shards(x: Float[Array, "..."], axes: Sequence[str], dim: int, wire: Wire) -> Float[Array, "..."]:
    """Sum a gradient over `axes` and keep this rank's shard of `dim`, in the dtype of `x`.

    Sends `x * (n - 1) / n` bytes in one level. In two `x * (ranks - 1) / ranks` inside nodes, and then
    `x / ranks * (nodes - 1) / nodes` between them. Quantised, each rank gets `row_bytes` of its part instead, inside
    the nodes of a sum in two levels those of `inside_wire`.
    """
    levels = levels_of(axes, wire.node_devices if wire.hierarchical or wire.gradient else None)
    if wire.gradient is not None:
        return _scatter_quantised(x, axes, dim, wire)
    if 1 in levels:
        return scatter_gradient(x, axes, dim)
    must_vary(x, axes, "scatter_gradient")
    must_add_up(x, "scatter_gradient")
    parts = _split(x, dim, levels.nodes, levels.ranks)
    with jax.named_scope("scatter_gradient"):
        mine = lax.psum_scatter(parts, tuple(axes), scatter_dimension=dim + 1, axis_index_groups=levels.inside)
        return lax.psum_scatter(mine, tuple(axes), scatter_dimension=dim, axis_index_groups=levels.between)


def _scatter_quantised(x: Float[Array, "..."], axes: Sequence[str], dim: int, wire: Wire) -> Float[Array, "..."]:
    """`scatter_shards` of a quantised gradient."""
    must_vary(x, axes, "scatter_gradient")
    must_add_up(x, "scatter_gradient")
    levels = levels_of(axes, wire.node_devices)
    with jax.named_scope("scatter_gradient"):
        parts = jnp.moveaxis(_split(x, dim, levels.nodes, levels.ranks), (dim, dim + 1), (1, 0))  # [rank, node, ...]
        return _exchanged_twice(parts, axes, levels, wire).astype(x.dtype)


def reduce_shards(x: Float[Array, "..."], axes: Sequence[str], wire: Wire) -> Float[Array, "..."]:
    """Sum a gradient over `axes`; the result is the same on all of their ranks.

    Sends `2 * x * (n - 1) / n` bytes in one level. In two, and quantised: as `scatter_shards` and its mirror image.
    """
    if wire.gradient is not None:
        return _reduce_quantised(x, axes, wire)
    levels = levels_of(axes, wire.node_devices if wire.hierarchical else None)
    if 1 in levels:
        return reduce_sum(x, axes)
    must_vary(x, axes, "reduce_sum")
    must_add_up(x, "reduce_sum")
    with jax.named_scope("reduce_sum"):
        flat = _padded(x, levels)
        mine = lax.psum_scatter(flat, tuple(axes), scatter_dimension=0, axis_index_groups=levels.inside)
        mine = lax.psum_scatter(mine, tuple(axes), scatter_dimension=0, axis_index_groups=levels.between)
        return _unpadded(_gathered_parts(mine, axes, levels), x, axes)


def _reduce_quantised(x: Float[Array, "..."], axes: Sequence[str], wire: Wire) -> Float[Array, "..."]:
    """`reduce_shards` of a quantised gradient."""
    levels, codes = levels_of(axes, wire.node_devices), wire.gradient
    assert codes is not None, "a gradient that is quantised"
    if levels == Levels(1, 1):
        return reduce_sum(x, axes)
    must_vary(x, axes, "reduce_sum")
    must_add_up(x, "reduce_sum")
    with jax.named_scope("reduce_sum"):
        mine = _exchanged_twice(_padded(x, levels), axes, levels, wire)
        parts = _gathered_parts(_coded(mine[None], codes)[0], axes, levels)
        return _unpadded(_uncoded(parts, mine.size, codes), x, axes)


def _padded(x: Array, levels: Levels) -> Float[Array, "rank node part"]:
    """`x` in equal parts for the members, the last one filled up with zeros."""
    flat = x.reshape(-1)
    return jnp.pad(flat, (0, -x.size % (levels.nodes * levels.ranks))).reshape(levels.ranks, levels.nodes, -1)


def _gathered_parts(mine: Array, axes: Sequence[str], levels: Levels) -> Array:
    """The members' parts, [member, ...] in the order of `_padded`."""
    whole = mine[None]
    if levels.nodes > 1:
        whole = lax.all_gather(mine, tuple(axes), axis=0, axis_index_groups=levels.between)
    if levels.ranks > 1:
        whole = lax.all_gather(whole, tuple(axes), axis=0, axis_index_groups=levels.inside)
    return whole.reshape(levels.nodes * levels.ranks, *mine.shape)


def _unpadded(whole: Array, x: Array, axes: Sequence[str]) -> Array:
    """The inverse of `_padded`, typed as the same on all ranks of `axes`."""
    return agreed(whole.reshape(-1)[: x.size].reshape(x.shape).astype(x.dtype), axes)


def _exchanged_twice(
    x: Float[Array, "rank node ..."], axes: Sequence[str], levels: Levels, wire: Wire
) -> Float[Array, "..."]:
    """The sum over all members of their parts for this one, inside the node and then between nodes, in float32."""
    codes = wire.gradient
    assert codes is not None, "a gradient that is quantised"
    if levels.ranks > 1:
        x = _exchanged(x, axes, levels.inside, inside_wire(codes) if levels.nodes > 1 else codes)[None]
    if levels.nodes == 1:
        return x[0, 0].astype(jnp.float32)
    return _exchanged(x[0], axes, levels.between, codes)


def inside_wire(wire: str) -> str:
    """Codes inside the nodes of a sum in two levels: 4 bits are for what leaves a node, where bytes are scarce; inside,
    8 bits keep half of the error away."""
    return "int8" if wire == "int4" else wire


def _exchanged(
    x: Float[Array, "member ..."], axes: Sequence[str], groups: RankGroups, codes: str
) -> Float[Array, "..."]:
    """The sum over the members of a group of their parts for this one, in float32."""
    sent = _coded(x.reshape(x.shape[0], -1), codes)
    received = lax.all_to_all(sent, tuple(axes), 0, 0, axis_index_groups=groups, tiled=True)
    return _uncoded(received, x[0].size, codes).sum(axis=0).reshape(x.shape[1:])


def _coded(rows: Array, codes: str) -> Array:
    return rows.astype(jnp.bfloat16) if codes == "bfloat16" else encode(rows, codes, stochastic=True)


def _uncoded(rows: Array, elements: int, codes: str) -> Array:
    return rows.astype(jnp.float32) if codes == "bfloat16" else decode(rows, elements, codes)


# ---- shapes


def _split(x: Array, dim: int, *parts: int) -> Array:
    """`x` with `dim` cut into parts, slowest first: [..., *parts, rest of dim, ...]."""
    return x.reshape(*x.shape[:dim], *parts, x.shape[dim] // prod(parts), *x.shape[dim + 1 :])


def _merged(x: Array, dim: int, dims: int) -> Array:
    """`x` with `dims` dims from `dim` on as one."""
    return x.reshape(*x.shape[:dim], -1, *x.shape[dim + dims :])


def _joined(parts: Array, dim: int) -> Array:
    """[member, ...] one after the other along `dim` of a member's."""
    return _merged(jnp.moveaxis(parts, 0, dim), dim, 2)
