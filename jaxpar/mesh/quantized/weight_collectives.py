"""Gathers and reductions of weights and gradients: exact or quantized, and gathers inside an hpZ group.

A quantized reduction is an all-to-all of quantized blocks and a sum in float32: first inside each node, then between
nodes, where a device sends only 1 / `ranks` of its gradient (`ranks` devices of the group are in each node).
`lax.psum_scatter` in an 8-bit dtype would also sum in that dtype (`jaxpar.mesh.collectives.scatter_gradient` refuses
it).

In the formulas `x` is the bytes of the local input, `e` its number of elements, `n = nodes * ranks`, and `row_bytes` is
`blocks.row_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxtyping import Array, Float, Shaped

from jaxpar.mesh.collectives import gather_weight, reduce_sum, refuse_8_bit_sum, require_varying, scatter_gradient
from jaxpar.mesh.quantized.blocks import decode, encode
from jaxpar.mesh.quantized.transport import Levels, RankGroups, Transport, WeightDtype, levels_of

# ---- weights


def gather_stored(x: Shaped[Array, "..."], axes: Sequence[str], dim: int, transport: Transport) -> Shaped[Array, "..."]:
    """Gather the shards of a weight along `dim`, in the dtype of `x`.

    With hpZ, only the ranks of an hpZ group communicate: `x * (hpz - 1)` bytes, exact. Otherwise `x * (n - 1)` bytes,
    or, quantized, `row_bytes(e) * (n - 1)`.
    """
    if transport.hpz == 1:
        return gather_shards(x, axes, dim, transport)
    levels = _hpz_levels(axes, transport)
    with jax.named_scope("gather_weight"):
        full = lax.all_gather(_split(x, dim, levels.nodes), tuple(axes), axis=dim + 1, axis_index_groups=levels.inside)
        return _merged(full, dim, 3)


def gather_shards(x: Shaped[Array, "..."], axes: Sequence[str], dim: int, transport: Transport) -> Shaped[Array, "..."]:
    """Gather all shards of a weight along `dim`: `gather_stored` without hpZ."""
    if transport.weight is None:
        return gather_weight(x, axes, dim)
    require_varying(x, axes, "gather_weight")
    return _joined(_gathered(x, axes, None, transport.weight), dim)


def gather_hpz(x: Shaped[Array, "..."], axes: Sequence[str], dim: int, transport: Transport) -> Shaped[Array, "..."]:
    """Gather a rank's hpZ shard of a weight along `dim`, from the ranks with the same index, one in each hpZ group.

    Sends `x * (s - 1)` bytes, or quantized `row_bytes(e) * (s - 1)`, with s = n / hpz.
    """
    levels = _hpz_levels(axes, transport)
    parts = _gathered(x, axes, levels.between, transport.weight) if levels.nodes > 1 else x[None]
    return _joined(parts, dim)


def _hpz_levels(axes: Sequence[str], transport: Transport) -> Levels:
    ranks = prod(lax.axis_size(axis) for axis in axes)
    assert ranks % transport.hpz == 0, f"hpZ groups of {transport.hpz} among {ranks} ranks"
    return Levels(ranks // transport.hpz, transport.hpz)


def _gathered(x: Array, axes: Sequence[str], groups: RankGroups, dtype: WeightDtype | None) -> Array:
    """`x` of all members of the group, [member, ...]."""
    with jax.named_scope("gather_weight"):
        sent = x if dtype is None else encode(x.reshape(1, -1), dtype)[0]
        parts = lax.all_gather(sent, tuple(axes), axis=0, axis_index_groups=groups)
        return parts if dtype is None else decode(parts, x.size, dtype).astype(x.dtype).reshape(-1, *x.shape)


# ---- gradients


def scatter_shards(x: Float[Array, "..."], axes: Sequence[str], dim: int, transport: Transport) -> Float[Array, "..."]:
    """Reduce-scatter a gradient over `axes` along `dim`, in the dtype of `x`.

    Sends `x * (n - 1) / n` bytes. Quantized: inside the node `ranks - 1` parts of `e / ranks` elements in
    `dtype_inside`, then between nodes `nodes - 1` parts of `e / n` elements, each in `row_bytes`.
    """
    if transport.gradient is None:
        return scatter_gradient(x, axes, dim)
    require_varying(x, axes, "scatter_gradient")
    refuse_8_bit_sum(x, "scatter_gradient")
    levels = levels_of(axes, transport.node_devices)
    with jax.named_scope("scatter_gradient"):
        parts = jnp.moveaxis(_split(x, dim, levels.nodes, levels.ranks), (dim, dim + 1), (1, 0))  # [rank, node, ...]
        return _sum_in_two_levels(parts, axes, levels, transport.gradient).astype(x.dtype)


def reduce_shards(x: Float[Array, "..."], axes: Sequence[str], transport: Transport) -> Float[Array, "..."]:
    """All-reduce a gradient over `axes`.

    Sends `2 * x * (n - 1) / n` bytes; quantized, the bytes of `scatter_shards` and of a gather of the sums: between the
    nodes first, since the other order would send every byte to all devices of a node.
    """
    dtype = transport.gradient
    if dtype is None:
        return reduce_sum(x, axes)
    levels = levels_of(axes, transport.node_devices)
    if levels == Levels(1, 1):
        return reduce_sum(x, axes)
    require_varying(x, axes, "reduce_sum")
    refuse_8_bit_sum(x, "reduce_sum")
    with jax.named_scope("reduce_sum"):
        flat = jnp.pad(x.reshape(-1), (0, -x.size % (levels.nodes * levels.ranks)))
        local = _sum_in_two_levels(flat.reshape(levels.ranks, levels.nodes, -1), axes, levels, dtype)
        parts = _encoded(local[None], dtype)
        if levels.nodes > 1:
            parts = lax.all_gather(parts[0], tuple(axes), axis=0, axis_index_groups=levels.between)
        if levels.ranks > 1:
            parts = lax.all_gather(parts, tuple(axes), axis=0, axis_index_groups=levels.inside)
        full = _decoded(parts.reshape(levels.nodes * levels.ranks, -1), local.size, dtype)
        return assume_replicated(full.reshape(-1)[: x.size].reshape(x.shape).astype(x.dtype), axes)


def _sum_in_two_levels(
    x: Float[Array, "rank node ..."], axes: Sequence[str], levels: Levels, dtype: str
) -> Float[Array, "..."]:
    """The sum over all members of their parts for this rank, inside the node and then between nodes, in float32."""
    if levels.ranks > 1:
        x = _all_to_all_sum(x, axes, levels.inside, dtype_inside(dtype) if levels.nodes > 1 else dtype)[None]
    if levels.nodes == 1:
        return x[0, 0].astype(jnp.float32)
    return _all_to_all_sum(x[0], axes, levels.between, dtype)


def dtype_inside(dtype: str) -> str:
    """Dtype inside the nodes of a sum in two levels: int4 is for links between nodes; inside, int8 avoids half of the
    error."""
    return "int8" if dtype == "int4" else dtype


def _all_to_all_sum(
    x: Float[Array, "member ..."], axes: Sequence[str], groups: RankGroups, dtype: str
) -> Float[Array, "..."]:
    """The sum over the members of a group of their parts for this rank, in float32."""
    sent = _encoded(x.reshape(x.shape[0], -1), dtype)
    received = lax.all_to_all(sent, tuple(axes), 0, 0, axis_index_groups=groups, tiled=True)
    return _decoded(received, x[0].size, dtype).sum(axis=0).reshape(x.shape[1:])


def _encoded(rows: Array, dtype: str) -> Array:
    return rows.astype(jnp.bfloat16) if dtype == "bfloat16" else encode(rows, dtype, stochastic=True)


def _decoded(rows: Array, elements: int, dtype: str) -> Array:
    return rows.astype(jnp.float32) if dtype == "bfloat16" else decode(rows, elements, dtype)


# ---- shapes


def _split(x: Array, dim: int, *parts: int) -> Array:
    """`x` with `dim` cut into parts, slowest first: [..., *parts, rest of dim, ...]."""
    return x.reshape(*x.shape[:dim], *parts, x.shape[dim] // prod(parts), *x.shape[dim + 1 :])


def _merged(x: Array, dim: int, dims: int) -> Array:
    """`x` with `dims` dims, from `dim` on, merged into one."""
    return x.reshape(*x.shape[:dim], -1, *x.shape[dim + dims :])


def _joined(parts: Array, dim: int) -> Array:
    """The members of [member, ...] concatenated along their dim `dim`."""
    return _merged(jnp.moveaxis(parts, 0, dim), dim, 2)


# ---- types

_assume_replicated = Primitive("assume_replicated")
_assume_replicated.def_abstract_eval(
    lambda x, *, axes: x.update(
        manual_axis_type=x.manual_axis_type.update(varying=x.manual_axis_type.varying - frozenset(axes))
    )
)
mlir.register_lowering(_assume_replicated, lambda context, x, *, axes: [x])


def assume_replicated(x: Shaped[Array, "..."], axes: Sequence[str]) -> Shaped[Array, "..."]:
    """`x`, typed as replicated over `axes`, which the caller guarantees. No data moves; there is no derivative.

    `lax.all_gather(..., to="invarying")` gives this type, but not for groups of ranks.
    """
    return _assume_replicated.bind(x, axes=tuple(axes))
