"""The collectives: every way in which tensors move between ranks inside the step.

Model code says *what* must be moved; the algorithm behind a collective is the plan's choice. Each docstring gives the
bytes that one device sends (equal to what it receives) as a formula of the local input's bytes `x` and the axis size
`n`. All of them must run inside the step's `shard_map`, and refuse values whose varying type would make them wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
from jax import lax
from jaxtyping import Array, Shaped

from jaxpar.mesh.axes import ROUTED_AXIS, varying_axes
from pallas_kernels.varying import vary_over


def gather_sequence(x: Shaped[Array, "batch part embed"]) -> Shaped[Array, "batch seq embed"]:
    """Join the sequence parts of the tensor ranks, before a matmul whose weight is split over them.

    The derivative is `scatter_sequence`. Sends `x * (n - 1)` bytes with n = tensor.
    """
    must_vary(x, ("tensor",), "gather_sequence")
    with jax.named_scope("gather_sequence"):
        return lax.all_gather(x, "tensor", axis=1, tiled=True)


def scatter_sequence(x: Shaped[Array, "batch seq embed"]) -> Shaped[Array, "batch part embed"]:
    """Sum partial results over the tensor ranks and keep this rank's part of the sequence.

    The derivative is `gather_sequence`. Sends `x * (n - 1) / n` bytes with n = tensor.
    """
    must_vary(x, ("tensor",), "scatter_sequence")
    must_add_up(x, "scatter_sequence")
    with jax.named_scope("scatter_sequence"):
        return lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True)


def gather_context(x: Shaped[Array, "..."], axis: int = 1) -> Shaped[Array, "..."]:
    """Join the sequence parts of the context ranks along `axis` (keys and values, before attention).

    The derivative sums and scatters. Sends `x * (n - 1)` bytes with n = context.
    """
    must_vary(x, ("context",), "gather_context")
    with jax.named_scope("gather_context"):
        return lax.all_gather(x, "context", axis=axis, tiled=True)


def scatter_context(x: Shaped[Array, "..."], axis: int = 1) -> Shaped[Array, "..."]:
    """Sum over the context ranks and keep this rank's part of `axis` (gradients of gathered keys and values).

    Sends `x * (n - 1) / n` bytes with n = context.
    """
    must_vary(x, ("context",), "scatter_context")
    must_add_up(x, "scatter_context")
    with jax.named_scope("scatter_context"):
        return lax.psum_scatter(x, "context", scatter_dimension=axis, tiled=True)


def shift_context(x: Shaped[Array, "..."], by: int, *, wrap: bool) -> Shaped[Array, "..."]:
    """Send `x` to the context rank `by` places further (ring attention); a rank that receives nothing gets zeros.

    With `wrap` the last rank's goes to the first. Sends `x` bytes (but none from a rank that has nobody to send to).
    """
    must_vary(x, ("context",), "shift_context")
    ranks = lax.axis_size("context")
    pairs = [(rank, (rank + by) % ranks) for rank in range(ranks) if 0 <= rank + by < ranks or wrap]
    with jax.named_scope("shift_context"):
        return lax.ppermute(x, "context", pairs)


def exchange_heads(
    x: Shaped[Array, "batch part heads width"], ranks: int
) -> Shaped[Array, "batch longer_part fewer_heads width"]:
    """Exchange heads for sequence: from all heads of one part to a share of the heads of `ranks` consecutive parts.
    Groups are of neighbouring context ranks; the rank r of a group has the r-th share of the heads. The derivative, and
    the inverse, is `exchange_sequence` (DeepSpeed Ulysses, arXiv:2309.14509). Sends `x * (n - 1) / n` bytes with
    n = ranks.
    """
    must_vary(x, ("context",), "exchange_heads")
    with jax.named_scope("exchange_heads"):
        return lax.all_to_all(x, "context", 2, 1, axis_index_groups=_neighbours(ranks), tiled=True)


def exchange_sequence(
    x: Shaped[Array, "batch longer_part fewer_heads width"], ranks: int
) -> Shaped[Array, "batch part heads width"]:
    """Undo `exchange_heads`, which is also the derivative. Sends `x * (n - 1) / n` bytes with n = ranks."""
    must_vary(x, ("context",), "exchange_sequence")
    with jax.named_scope("exchange_sequence"):
        return lax.all_to_all(x, "context", 1, 2, axis_index_groups=_neighbours(ranks), tiled=True)


def _neighbours(ranks: int) -> list[list[int]]:
    """The context ranks in groups of `ranks` neighbours."""
    size = lax.axis_size("context")
    assert size % ranks == 0, f"groups of {ranks} on a context axis of {size}"
    return [list(range(first, first + ranks)) for first in range(0, size, ranks)]


def gather_tokens(x: Shaped[Array, "tokens ..."]) -> Shaped[Array, "more_tokens ..."]:
    """Join the tokens of routed and tensor ranks, for matrices that lie on some of them.

    The derivative is `scatter_tokens`. Sends `x * (n - 1)` bytes with n = routed * tensor.
    """
    must_vary(x, (ROUTED_AXIS, "tensor"), "gather_tokens")
    with jax.named_scope("gather_tokens"):
        return lax.all_gather(x, (ROUTED_AXIS, "tensor"), axis=0, tiled=True)


def scatter_tokens(x: Shaped[Array, "more_tokens ..."]) -> Shaped[Array, "tokens ..."]:
    """Sum over routed and tensor ranks what each has for all their tokens, and keep this rank's tokens.

    The derivative is `gather_tokens`. Sends `x * (n - 1) / n` bytes with n = routed * tensor.
    """
    must_vary(x, (ROUTED_AXIS, "tensor"), "scatter_tokens")
    must_add_up(x, "scatter_tokens")
    with jax.named_scope("scatter_tokens"):
        return lax.psum_scatter(x, (ROUTED_AXIS, "tensor"), scatter_dimension=0, tiled=True)


def exchange_tokens(x: Shaped[Array, "rows ..."]) -> Shaped[Array, "rows ..."]:
    """Send the i-th of n equal parts of the rows to rank i of `ROUTED_AXIS`; received parts stand in the ranks' order.

    It is its own inverse, and its own derivative. Sends `x * (n - 1) / n` bytes.
    """
    must_vary(x, (ROUTED_AXIS,), "exchange_tokens")
    with jax.named_scope("exchange_tokens"):
        return lax.all_to_all(x, ROUTED_AXIS, 0, 0, tiled=True)


def join_ranks(x: Shaped[Array, "rows ..."], axes: Sequence[str]) -> Shaped[Array, "more_rows ..."]:
    """Join the rows of all ranks of `axes`, for what each rank decides from all of them; without a derivative.

    Sends `x * (n - 1)` bytes with n = product of the sizes of `axes`.
    """
    must_vary(x, axes, "join_ranks")
    with jax.named_scope("join_ranks"):
        return lax.all_gather(lax.stop_gradient(x), tuple(axes), axis=0, tiled=True)


def gather_rows(x: Shaped[Array, "ranks_rows ... part"], axes: Sequence[str]) -> Shaped[Array, "rows ... embed"]:
    """Join this rank's rows of a table that all ranks of `axes` hold a part of each row of, from the parts `x` of the
    rows of every rank, those of the first rank first.

    The derivative, and the inverse, is `scatter_rows`. Sends `x * (n - 1) / n` bytes with n = product of the sizes of
    `axes`.
    """
    must_vary(x, axes, "gather_rows")
    with jax.named_scope("gather_rows"):
        return lax.all_to_all(x, tuple(axes), 0, x.ndim - 1, tiled=True)


def scatter_rows(x: Shaped[Array, "rows ... embed"], axes: Sequence[str]) -> Shaped[Array, "ranks_rows ... part"]:
    """Undo `gather_rows`, which is also the derivative. Sends `x * (n - 1) / n` bytes with n = product of the sizes of
    `axes`.
    """
    must_vary(x, axes, "scatter_rows")
    with jax.named_scope("scatter_rows"):
        return lax.all_to_all(x, tuple(axes), x.ndim - 1, 0, tiled=True)


def gather_weight(x: Shaped[Array, "..."], axes: Sequence[str], dim: int) -> Shaped[Array, "..."]:
    """Join the shards of a weight along `dim`. Sends `x * (n - 1)` bytes with n = product of the sizes of `axes`."""
    must_vary(x, axes, "gather_weight")
    with jax.named_scope("gather_weight"):
        return lax.all_gather(x, tuple(axes), axis=dim, tiled=True)


def scatter_gradient(x: Shaped[Array, "..."], axes: Sequence[str], dim: int) -> Shaped[Array, "..."]:
    """Sum a gradient over `axes` and keep this rank's shard of `dim`.

    Sends `x * (n - 1) / n` bytes with n = product of the sizes of `axes`.
    """
    must_vary(x, axes, "scatter_gradient")
    must_add_up(x, "scatter_gradient")
    with jax.named_scope("scatter_gradient"):
        return lax.psum_scatter(x, tuple(axes), scatter_dimension=dim, tiled=True)


def shift_stage(x: Shaped[Array, "..."], by: int, *, wrap: bool) -> Shaped[Array, "..."]:
    """Send `x` to the pipeline rank `by` (1 or -1) places further; a rank that receives nothing gets zeros.

    With `wrap` the last rank's goes to the first (and the first's to the last), as chunks of several per rank need.
    Sends `x` bytes (but none from the rank that has nobody to send to).
    """
    must_vary(x, ("pipe",), "shift_stage")
    ranks = lax.axis_size("pipe")
    pairs = [(rank, rank + by) for rank in range(ranks) if 0 <= rank + by < ranks or wrap]
    with jax.named_scope("shift_stage"):
        return lax.ppermute(x, "pipe", [(rank, to % ranks) for rank, to in pairs])


def sum_over_stages(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Sum over the pipeline ranks; each rank may continue with the result differently.
    Sends `2 * x * (n - 1) / n` bytes with n = pipe.
    """
    return _sum_for_each(x, "pipe", "sum_over_stages")


def sum_over_heads(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Sum over the tensor ranks what each has of its heads; each rank continues with the result for its own heads.
    Sends `2 * x * (n - 1) / n` bytes with n = tensor.
    """
    return _sum_for_each(x, "tensor", "sum_over_heads")


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _sum_for_each(x: Shaped[Array, "..."], axis: str, collective: str) -> Shaped[Array, "..."]:
    """The sum over `axis`, which each rank uses differently; so the derivative is the sum of the ranks' gradients."""
    must_vary(x, (axis,), collective)
    must_add_up(x, collective)
    with jax.named_scope(collective):
        return vary_over(lax.psum(x, axis), frozenset({axis}))


_sum_for_each.defvjp(
    lambda x, axis, collective: (_sum_for_each(x, axis, collective), None),
    lambda axis, collective, _, dy: (_sum_for_each(dy, axis, collective),),
)


def reduce_sum(x: Shaped[Array, "..."], axes: Sequence[str]) -> Shaped[Array, "..."]:
    """Sum over `axes`; the result is the same on all of their ranks.

    Sends `2 * x * (n - 1) / n` bytes with n = product of the sizes of `axes`. Raises `ValueError` for an axis that `x`
    does not vary over: `lax.psum` would multiply by its size.
    """
    must_vary(x, axes, "reduce_sum")
    must_add_up(x, "reduce_sum")
    with jax.named_scope("reduce_sum"):
        return lax.psum(x, tuple(axes)) if axes else x


def reduce_max(x: Shaped[Array, "..."], axes: Sequence[str]) -> Shaped[Array, "..."]:
    """Maximum over `axes`, without a derivative. Sends as many bytes as `reduce_sum`."""
    with jax.named_scope("reduce_max"):
        return lax.pmax(lax.stop_gradient(x), tuple(axes))


def must_add_up(x: jax.Array, collective: str) -> None:
    """Raise `ValueError` for a sum in 8 bits, which would compile, and overflow: codes are exchanged, and summed in
    float32."""
    if x.dtype.itemsize < 2 and x.dtype != bool:
        raise ValueError(
            f"{collective} of {x.dtype.name}: the sum would be computed in this type; expected an all-to-all of the "
            "codes, and a sum in float32 (jaxpar.mesh.quantized)"
        )


def must_vary(x: jax.Array, axes: Sequence[str], collective: str) -> None:
    """Raise `ValueError` unless `x` may differ between the ranks of each of `axes`."""
    fixed = [axis for axis in axes if axis not in varying_axes(x)]
    if fixed:
        raise ValueError(
            f"{collective} over {tuple(axes)}: the value is the same on all ranks of {fixed}, so it would count "
            "several times"
        )
