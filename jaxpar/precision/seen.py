"""What a step sees of the tensors of quantised matmuls: largest magnitudes, and how many numbers codes do not hold.

Both leave the backward as cotangents of zeros, and accumulate over layers, microbatches and ranks: magnitudes as a
maximum, counts as a sum. A count is a float32, which is exact up to 2^24 and from there on within 1e-7 of itself at
each sum.

**What is counted is quantising**: a tensor that several ranks hold whole and quantise each, or a matrix that is
quantised with each use, is counted as often, and so are its numbers: shares are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxpar.mesh.axes import AXES, vary, varying_axes
from jaxpar.mesh.collectives import reduce_max, reduce_sum
from jaxpar.precision.recipe import E4M3, E5M2, LARGEST, Recipe
from jaxpar.precision.scale import largest_of
from pallas_kernels.varying import vary_alike

COUNTS = ("numbers", "saturated", "flushed")
"""What is counted of a tensor, in this order: all its numbers, those cut off at the format's largest, and those that
are not zero and whose code is."""

ROUNDED_TO_ZERO = {E4M3: 2.0**-10, E5M2: 2.0**-17}
"""The largest magnitude that rounds to zero: half of a format's smallest number, a tie that goes to the even one."""


class Seen(NamedTuple):
    """Of each tensor of a layer, or of each layer and tensor; None where nothing asks for it."""

    largest: Float[Array, "*layers tensors"] | None = None
    """The largest magnitude."""
    counts: Float[Array, "*layers tensors counts"] | None = None
    """`COUNTS`."""

    def with_layer(self, number: jax.Array, new: Seen, counted: Bool[Array, ""]) -> Seen:
        """All layers with what one pass through layer `number` saw, where that is counted."""
        only = lambda own: jnp.where(counted, own, 0)
        largest = None if self.largest is None else self.largest.at[number].max(only(new.largest))
        counts = None if self.counts is None else self.counts.at[number].add(only(new.counts))
        return Seen(largest, counts)

    def joined_to(self, other: Seen) -> Seen:
        """What was seen here and there, of what is asked for here."""
        join = lambda merge, own, more: own if own is None or more is None else merge(own, more)
        return Seen(join(jnp.maximum, self.largest, other.largest), join(jnp.add, self.counts, other.counts))

    def over_ranks(self, weights: Seen) -> Seen:
        """What all ranks saw, the same on all of them, with what they saw of `weights` before."""
        # One message of each kind, after all branches of the layers: see docs/decisions.md.
        largest, counts = self.joined_to(weights)
        return Seen(
            None if largest is None else reduce_max(largest, AXES), None if counts is None else reduce_sum(counts, AXES)
        )


def nothing_seen(*shape: int, counts: bool) -> Seen:
    """Zeros [*shape], the last of which are the tensors of a layer."""
    return Seen(jnp.zeros(shape, jnp.float32), jnp.zeros((*shape, len(COUNTS)), jnp.float32) if counts else None)


# ---- counts


def counts_of(
    x: Float[Array, "..."], scale: Float[Array, "..."], form: str, numbers: Float[Array, ""] | None = None
) -> Float[Array, "counts"]:
    """`COUNTS` of this rank's part of a tensor that becomes codes of `x` / `scale`; `numbers` are those that `x` holds,
    if zeros are in place of others."""
    size = jnp.abs(x.astype(jnp.float32)) / scale
    total = lambda which: jnp.sum(which, dtype=jnp.uint32).astype(jnp.float32)
    flushed = total((x != 0) & (size <= ROUNDED_TO_ZERO[form]))
    # From the tensor, so that the number varies over the ranks as the others do.
    held = jnp.float32(x.size if numbers is None else numbers) + 0 * flushed
    return jnp.stack([held, total(size > LARGEST[form]), flushed])


def held_rows(sizes: Int[Array, " groups"], *each: Float[Array, "rows columns"]) -> list[Float[Array, "rows columns"]]:
    """Rows of groups with zeros in place of those that none has."""
    there = (jnp.arange(len(each[0])) < sizes.sum())[:, None]
    return [jnp.where(there, rows, 0) for rows in each]


def held_numbers(sizes: Int[Array, " groups"], x: Float[Array, "rows columns"]) -> Float[Array, ""]:
    """How many numbers the rows have that groups have."""
    return jnp.minimum(sizes.sum(), len(x)).astype(jnp.float32) * x.shape[1]


def seen_by_group(
    x: jax.Array,
    weights: Sequence[jax.Array],
    dys: Sequence[jax.Array],
    unseen: Seen,
    coded: bool,
    scales: Sequence[jax.Array] | jax.Array,
    of_gradients: Sequence[jax.Array] | jax.Array,
    recipe: Recipe,
    sizes: Int[Array, " groups"] | None = None,
    found: bool = False,
) -> Seen:
    """What is asked for of a group's tensors on this rank; of weights that are codes already, nothing.

    Args:
        x: the input.
        weights: the matrices.
        dys: the gradients of the outputs.
        unseen: zeros for what is asked for.
        coded: whether the weights are values of codes already.
        scales: of the input and of the weights.
        of_gradients: those of `dys`.
        recipe: how the gradients are quantised.
        sizes: rows of each group, where `x` and `dys` are rows of several; behind these nothing is seen.
        found: whether the largest magnitudes of `dys` are found where these are made.
    """
    largest = counts = None
    if sizes is not None:
        x, *dys = held_rows(sizes, x, *dys)
    if unseen.largest is not None:
        of_weights = [jnp.float32(0) if coded else largest_of(w) for w in weights]
        of_dys = [jnp.float32(0) if found else largest_of(dy) for dy in dys]
        largest = joined((largest_of(x), *of_weights, *of_dys), unseen.largest)
    if unseen.counts is not None:
        numbers_of = lambda rows: None if sizes is None else held_numbers(sizes, rows)
        count = lambda rows, scale, form: counts_of(rows, scale, form, numbers_of(rows))
        own = enumerate(weights, start=1)
        of_weights = [jnp.zeros(len(COUNTS)) if coded else counts_of(w, scales[n], E4M3) for n, w in own]
        of_dys = [count(dy, of_gradients[n], recipe.gradient) for n, dy in enumerate(dys)]
        counts = joined((count(x, scales[0], E4M3), *of_weights, *of_dys), unseen.counts)
    return Seen(largest, counts)


# ---- gradients that elementwise work makes


def seeing_gradients(
    function: Callable[..., Float[Array, "..."]], unseen: Float[Array, "inputs"], *inputs: Float[Array, "..."]
) -> Float[Array, "..."]:
    """An elementwise `function` of `inputs`. The cotangent of the zeros `unseen` is, of the gradient of each input, the
    largest magnitude on this rank.

    The derivative computes these gradients twice, in float32 for their magnitudes. With one use each, XLA writes no
    array of them: one kernel reads what the derivative needs, and makes their codes and magnitudes. A gradient with two
    uses it writes, and reads again (docs/fp8.md, passes over memory).
    """
    return _seeing(function, *vary_alike((unseen, *inputs)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _seeing(function: Callable[..., jax.Array], unseen: jax.Array, *inputs: jax.Array) -> jax.Array:
    del unseen
    return function(*inputs)


def _seeing_forward(function: Callable[..., jax.Array], unseen: jax.Array, *inputs: jax.Array) -> tuple[Any, Any]:
    out, pullback = jax.vjp(function, *inputs)
    return out, (pullback, unseen, inputs)


def _seeing_backward(function: Callable[..., jax.Array], kept: Any, d_out: jax.Array) -> tuple[jax.Array, ...]:
    pullback, unseen, inputs = kept
    wide = lambda x: x.astype(jnp.float32)
    _, in_float32 = jax.vjp(function, *map(wide, inputs))
    largest = map(largest_of, in_float32(wide(d_out)))
    rounded = [own.astype(x.dtype).astype(jnp.float32) for own, x in zip(largest, inputs, strict=True)]
    return joined(rounded, unseen), *pullback(d_out)


_seeing.defvjp(_seeing_forward, _seeing_backward)


def joined(tensors: Sequence[jax.Array], like: jax.Array) -> jax.Array:
    """What was seen of each tensor as one cotangent of `like`."""
    return vary(jnp.stack(vary_alike(tuple(tensors))), varying_axes(like))
