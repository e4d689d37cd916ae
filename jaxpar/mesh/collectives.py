"""The collectives: every way in which tensors move between ranks inside the step.

Model code says *what* must be moved; the algorithm behind a collective is the plan's choice. Each docstring gives the
bytes that one device sends (equal to what it receives) as a formula of the bytes `x` of the local input and the number
`n` of ranks, the product of the sizes of its axes. All must run inside the step's `shard_map`, and refuse values whose
varying type would make them wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import jax
from jax import lax
from jaxtyping import Array, Shaped

from jaxpar.mesh.axes import ISLANDS, ROUTED_AXIS, varying_axes
from pallas_kernels.varying import vary_over
from pallas_kernels.vjp_parts import custom_vjp

TOKEN_RANKS = (ROUTED_AXIS, "tensor")
"""Axes over which tokens are joined for matrices that lie on some of their ranks."""


# ---- the sequence


def gather_sequence(x: Shaped[Array, "batch part embed"]) -> Shaped[Array, "batch seq embed"]:
    """Join the sequence parts of the tensor ranks, before a matmul whose weight is split over them.

    The derivative is `scatter_sequence`. Sends `x * (n - 1)` bytes.
    """
    return _gather(x, ("tensor",), 1, "gather_sequence")


def scatter_sequence(x: Shaped[Array, "batch seq embed"]) -> Shaped[Array, "batch part embed"]:
    """Sum partial results over the tensor ranks and keep this rank's part of the sequence.

    The derivative is `gather_sequence`. Sends `x * (n - 1) / n` bytes.
    """
    return _scatter(x, ("tensor",), 1, "scatter_sequence")


def gather_context(x: Shaped[Array, "batch part ..."]) -> Shaped[Array, "batch seq ..."]:
    """Join the sequence parts of the context ranks (keys and values, before attention).

    The derivative is `scatter_context`. Sends `x * (n - 1)` bytes.
    """
    return _gather(x, ("context",), 1, "gather_context")


def scatter_context(x: Shaped[Array, "batch seq ..."]) -> Shaped[Array, "batch part ..."]:
    """Sum over the context ranks and keep this rank's part of the sequence (gradients of gathered keys and values).

    Sends `x * (n - 1) / n` bytes.
    """
    return _scatter(x, ("context",), 1, "scatter_context")


def shift_context(
    x: Shaped[Array, "..."], by: int, *, wrap: bool, senders: Collection[int] | None = None
) -> Shaped[Array, "..."]:
    """Send `x` to the context rank `by` further (ring attention); a rank that receives nothing gets zeros.

    With `wrap` the last rank's goes to the first; if there are `senders`, other ranks send nothing. Sends `x` bytes
    (but none from a rank that has nobody to send to).
    """
    return _shift(x, "context", by, wrap, "shift_context", senders)


def exchange_heads(
    x: Shaped[Array, "batch part heads width"], ranks: int
) -> Shaped[Array, "batch longer_part fewer_heads width"]:
    """Exchange heads for sequence: from all heads of one part to a share of the heads of `ranks` consecutive parts.

    Groups are of neighbouring context ranks; the rank r of a group has the r-th share of the heads. The derivative, and
    the inverse, is `exchange_sequence` (DeepSpeed Ulysses, arXiv:2309.14509). Sends `x * (n - 1) / n` bytes with
    n = ranks.
    """
    return _exchange(x, ("context",), 2, 1, "exchange_heads", _neighbours(ranks))


def exchange_sequence(
    x: Shaped[Array, "batch longer_part fewer_heads width"], ranks: int
) -> Shaped[Array, "batch part heads width"]:
    """Undo `exchange_heads`, which is also the derivative. Sends `x * (n - 1) / n` bytes with n = ranks."""
    return _exchange(x, ("context",), 1, 2, "exchange_sequence", _neighbours(ranks))


def _neighbours(ranks: int) -> list[list[int]]:
    """The context ranks in groups of `ranks` neighbours."""
    size = lax.axis_size("context")
    assert size % ranks == 0, f"groups of {ranks} on a context axis of {size}"
    return [list(range(first, first + ranks)) for first in range(0, size, ranks)]


# ---- tokens and rows


def gather_tokens(x: Shaped[Array, "tokens ..."]) -> Shaped[Array, "more_tokens ..."]:
    """Join the tokens of `TOKEN_RANKS`. The derivative is `scatter_tokens`. Sends `x * (n - 1)` bytes."""
    return _gather(x, TOKEN_RANKS, 0, "gather_tokens")


def scatter_tokens(x: Shaped[Array, "more_tokens ..."]) -> Shaped[Array, "tokens ..."]:
    """Sum over `TOKEN_RANKS` what each has for all their tokens, and keep this rank's tokens.

    The derivative is `gather_tokens`. Sends `x * (n - 1) / n` bytes.
    """
    return _scatter(x, TOKEN_RANKS, 0, "scatter_tokens")


def exchange_tokens(x: Shaped[Array, "rows ..."]) -> Shaped[Array, "rows ..."]:
    """Send the i-th of n equal parts of the rows to rank i of `ROUTED_AXIS`; received parts stand in the ranks' order.

    It is its own inverse, and its own derivative. Sends `x * (n - 1) / n` bytes.
    """
    return _exchange(x, (ROUTED_AXIS,), 0, 0, "exchange_tokens")


def join_ranks(x: Shaped[Array, "rows ..."], axes: Sequence[str]) -> Shaped[Array, "more_rows ..."]:
    """Join the rows of all ranks of `axes`, for what each rank decides from all of them; without a derivative.

    Sends `x * (n - 1)` bytes.
    """
    return _gather(lax.stop_gradient(x), axes, 0, "join_ranks")


def gather_rows(x: Shaped[Array, "ranks_rows ... part"], axes: Sequence[str]) -> Shaped[Array, "rows ... embed"]:
    """Join this rank's rows of a table that all ranks of `axes` hold a part of each row of, from the parts `x` of the
    rows of every rank, those of the first rank first.

    The derivative, and the inverse, is `scatter_rows`. Sends `x * (n - 1) / n` bytes.
    """
    return _exchange(x, axes, 0, x.ndim - 1, "gather_rows")


def scatter_rows(x: Shaped[Array, "rows ... embed"], axes: Sequence[str]) -> Shaped[Array, "ranks_rows ... part"]:
    """Undo `gather_rows`, which is also the derivative. Sends `x * (n - 1) / n` bytes."""
    return _exchange(x, axes, x.ndim - 1, 0, "scatter_rows")


# ---- weights and gradients


def gather_weight(x: Shaped[Array, "..."], axes: Sequence[str], dim: int) -> Shaped[Array, "..."]:
    """Join the shards of a weight along `dim`. Sends `x * (n - 1)` bytes."""
    return _gather(x, axes, dim, "gather_weight")


def scatter_gradient(x: Shaped[Array, "..."], axes: Sequence[str], dim: int) -> Shaped[Array, "..."]:
    """Sum a gradient over `axes` and keep this rank's shard of `dim`. Sends `x * (n - 1) / n` bytes."""
    return _scatter(x, axes, dim, "scatter_gradient")


# ---- stages, and sums that all ranks get


def shift_stage(x: Shaped[Array, "..."], by: int, *, wrap: bool) -> Shaped[Array, "..."]:
    """Send `x` to the pipeline rank `by` (1 or -1) further; a rank that receives nothing gets zeros.

    With `wrap` the last rank's goes to the first (and the first's to the last), as chunks of several per rank need.
    Sends `x` bytes (but none from the rank that has nobody to send to).
    """
    return _shift(x, "pipe", by, wrap, "shift_stage")


def sum_over_stages(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Sum over the pipeline ranks; each rank may continue with the result differently.

    Sends `2 * x * (n - 1) / n` bytes.
    """
    return _sum_for_each(x, "pipe", "sum_over_stages")


def sum_over_heads(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Sum over the tensor ranks what each has of its heads; each rank continues with the result for its own heads.

    Sends `2 * x * (n - 1) / n` bytes.
    """
    return _sum_for_each(x, "tensor", "sum_over_heads")


@custom_vjp(1, 2)
def _sum_for_each(x: Shaped[Array, "..."], axis: str, collective: str) -> Shaped[Array, "..."]:
    """The sum over `axis`, which each rank uses differently; so the derivative is the sum of the ranks' gradients."""
    require_varying(x, (axis,), collective)
    refuse_8_bit_sum(x, collective)
    with jax.named_scope(collective):
        return vary_over(lax.psum(x, axis), frozenset({axis}))


_sum_for_each.defvjp(
    lambda x, axis, collective: (_sum_for_each(x, axis, collective), None),
    lambda axis, collective, _, dy: (_sum_for_each(dy, axis, collective),),
)


def reduce_sum(x: Shaped[Array, "..."], axes: Sequence[str]) -> Shaped[Array, "..."]:
    """Sum over `axes`; the result is the same on all of their ranks.

    Sends `2 * x * (n - 1) / n` bytes. Raises `ValueError` for an axis that `x` does not vary over: `lax.psum` would
    multiply by its size.
    """
    require_varying(x, axes, "reduce_sum")
    refuse_8_bit_sum(x, "reduce_sum")
    with jax.named_scope("reduce_sum"):
        return lax.psum(x, tuple(axes)) if axes else x


def reduce_max(x: Shaped[Array, "..."], axes: Sequence[str]) -> Shaped[Array, "..."]:
    """Maximum over `axes`, without a derivative. Sends as many bytes as `reduce_sum`."""
    with jax.named_scope("reduce_max"):
        return lax.pmax(lax.stop_gradient(x), tuple(axes))


def sum_over_islands(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Sum over the islands, the same on all of them. Sends `2 * x * (n - 1) / n` bytes."""
    with jax.named_scope("sum_over_islands"):
        return lax.psum(x, ISLANDS)


def gather_from_islands(x: Shaped[Array, "..."]) -> Shaped[Array, "islands ..."]:
    """The arrays of all islands, the same on all of them. Sends `x * (n - 1)` bytes."""
    with jax.named_scope("gather_from_islands"):
        return lax.all_gather(x, ISLANDS, to="invarying")


# ---- one function for each operation of JAX


def _gather(x: Array, axes: Sequence[str], dim: int, collective: str) -> Array:
    require_varying(x, axes, collective)
    with jax.named_scope(collective):
        return lax.all_gather(x, tuple(axes), axis=dim, tiled=True)


def _scatter(x: Array, axes: Sequence[str], dim: int, collective: str) -> Array:
    require_varying(x, axes, collective)
    refuse_8_bit_sum(x, collective)
    with jax.named_scope(collective):
        return lax.psum_scatter(x, tuple(axes), scatter_dimension=dim, tiled=True)


def _exchange(
    x: Array, axes: Sequence[str], split: int, joined: int, collective: str, groups: list[list[int]] | None = None
) -> Array:
    require_varying(x, axes, collective)
    with jax.named_scope(collective):
        return lax.all_to_all(x, tuple(axes), split, joined, axis_index_groups=groups, tiled=True)


def _shift(x: Array, axis: str, by: int, wrap: bool, collective: str, senders: Collection[int] | None = None) -> Array:
    require_varying(x, (axis,), collective)
    ranks = lax.axis_size(axis)
    pairs = [(rank, (rank + by) % ranks) for rank in range(ranks) if 0 <= rank + by < ranks or wrap]
    pairs = [pair for pair in pairs if senders is None or pair[0] in senders]
    with jax.named_scope(collective):
        return lax.ppermute(x, axis, pairs)


def refuse_8_bit_sum(x: jax.Array, collective: str) -> None:
    """Raise `ValueError` for a sum in 8 bits, which would compile, and overflow: codes are exchanged, and summed in
    float32."""
    if x.dtype.itemsize < 2 and x.dtype != bool:
        raise ValueError(
            f"{collective} of {x.dtype.name}: the sum would be computed in this type; expected an all-to-all of the "
            "codes, and a sum in float32 (jaxpar.mesh.quantized)"
        )


def require_varying(x: jax.Array, axes: Sequence[str], collective: str) -> None:
    """Raise `ValueError` unless `x` may differ between the ranks of each of `axes`."""
    fixed = [axis for axis in axes if axis not in varying_axes(x)]
    if fixed:
        raise ValueError(
            f"{collective} over {tuple(axes)}: the value is the same on all ranks of {fixed}, so it would count "
            "several times"
        )
