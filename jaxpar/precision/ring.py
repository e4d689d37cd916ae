"""Quantised matmuls as rings over tensor ranks: what passes from rank to rank is codes of 8 bits.

The rings of `jaxpar.mesh.collective_matmul` with the products of `jaxpar.precision.matmul`: inputs on their way into a
layer, and gradients of what leaves it, travel as codes, which have the scale of the whole tensor; so they have the bits
of the codes that are gathered whole. Partial sums travel in the dtype of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
from jaxtyping import Array, Float, PyTree

from jaxpar.mesh.collective_matmul import (
    gathered_gradients,
    gathered_products,
    scattered_gradients,
    scattered_products,
)
from jaxpar.mesh.rings import ArrayTuple, Asked, Cotangent, asked_of, instantiated
from jaxpar.precision.amax import Amax, amax_of_group
from jaxpar.precision.matmul import GroupScaling, codes_of, gradient_scales, quantise, scales_of_group
from jaxpar.precision.recipe import E4M3, Recipe


@jax.tree_util.register_static
@dataclass(frozen=True)
class _How:
    recipe: Recipe
    chunks: int
    """Of a rank's part of the sequence."""
    coded: bool
    """Whether the weights are values of codes already."""


def ring_in(
    x: Float[Array, "batch part *inputs"], weights: Sequence[Float[Array, "..."]], scaling: GroupScaling, chunks: int
) -> tuple[Float[Array, "batch seq ..."], ...]:
    """The sequence that `x` is joined to times each matrix [*inputs, *outputs].

    Sends `x * (n - 1)` bytes with n = tensor, of codes: one byte a number. Backward the same again, and
    `x * (n - 1)` bytes of the input's gradient in its own dtype.
    """
    x, weights, scales, zeros = scales_of_group(x, weights, scaling)
    return _in(_How(scaling.recipe, chunks, scaling.coded), x, weights, scales, zeros)


def ring_out(
    x: Float[Array, "batch seq *inputs"], weight: Float[Array, "..."], scaling: GroupScaling, chunks: int
) -> Float[Array, "batch part *outputs"]:
    """This rank's part of `x` times a matrix [*inputs, *outputs], summed over the tensor ranks.

    Sends `y * (n - 1) / n` bytes with n = tensor and y the bytes of the product in the dtype of `x`. Backward
    `y * (n - 1) / n` bytes of codes: one byte a number.
    """
    x, weights, scales, zeros = scales_of_group(x, [weight], scaling)
    return _out(_How(scaling.recipe, chunks, scaling.coded), x, weights, scales, zeros)


type _Saved = tuple[Asked, jax.Array, ArrayTuple, jax.Array, Amax | None]


# ---- in


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in(how: _How, x: jax.Array, weights: ArrayTuple, scales: jax.Array, zeros: Amax | None) -> ArrayTuple:
    del zeros
    codes = quantise(x, scales[0], E4M3)
    found = gathered_products(how.chunks, codes, codes_of(weights, scales, how.coded), x.dtype)
    return tuple(y * (scales[0] * scale).astype(x.dtype) for y, scale in zip(found, scales[1:], strict=False))


def _in_forward(
    how: _How, x: jax.Array, weights: ArrayTuple, scales: jax.Array, zeros: Amax | None
) -> tuple[ArrayTuple, _Saved]:
    asked, x, weights = asked_of(x, weights)
    scales, zeros = _values((scales, zeros))
    return _in(how, x, weights, scales, zeros), (asked, x, weights, scales, zeros)


def _in_backward(how: _How, saved: _Saved, dys: tuple[Cotangent, ...]) -> tuple[PyTree[jax.Array], ...]:
    asked, x, weights, scales, zeros = saved
    each = [instantiated(dy, x) for dy in dys]
    of_dys = gradient_scales(each, scales, len(weights), how.recipe)
    amax = amax_of_group(x, weights, each, zeros, coded=how.coded)
    codes = [quantise(dy, scale, how.recipe.gradient) for dy, scale in zip(each, of_dys, strict=True)]
    dx, sums = gathered_gradients(
        how.chunks, asked, quantise(x, scales[0], E4M3), codes_of(weights, scales, how.coded), codes, x.dtype,
        [of_dys[n] * scales[1 + n] for n in range(len(weights))],
    )  # fmt: skip
    return dx, _gradients(asked, sums, weights, scales[0], of_dys), None, amax


_in.defvjp(_in_forward, _in_backward, symbolic_zeros=True)


# ---- out


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _out(how: _How, x: jax.Array, weights: ArrayTuple, scales: jax.Array, zeros: Amax | None) -> jax.Array:
    del zeros
    codes = quantise(x, scales[0], E4M3)
    found = scattered_products(how.chunks, [codes], codes_of(weights, scales, how.coded), x.dtype)
    return found * (scales[0] * scales[1]).astype(x.dtype)


def _out_forward(
    how: _How, x: jax.Array, weights: ArrayTuple, scales: jax.Array, zeros: Amax | None
) -> tuple[jax.Array, _Saved]:
    asked, x, weights = asked_of(x, weights)
    scales, zeros = _values((scales, zeros))
    return _out(how, x, weights, scales, zeros), (asked, x, weights, scales, zeros)


def _out_backward(how: _How, saved: _Saved, cotangent: Cotangent) -> tuple[PyTree[jax.Array], ...]:
    asked, x, weights, scales, zeros = saved
    dy = instantiated(cotangent, x)
    of_dys = gradient_scales([dy], scales, 1, how.recipe)
    amax = amax_of_group(x, weights, [dy], zeros, coded=how.coded)
    codes = quantise(dy, of_dys[0], how.recipe.gradient)
    matrices = codes_of(weights, scales, how.coded)
    dxs, sums = scattered_gradients(how.chunks, asked, [quantise(x, scales[0], E4M3)], matrices, codes, x.dtype)
    dx = None if dxs is None else dxs[0] * (of_dys[0] * scales[1]).astype(x.dtype)
    return dx, _gradients(asked, sums, weights, scales[0], of_dys), None, amax


_out.defvjp(_out_forward, _out_backward, symbolic_zeros=True)


def _gradients(
    asked: Asked, sums: list[jax.Array], weights: ArrayTuple, of_x: jax.Array, of_dys: jax.Array
) -> tuple[jax.Array | None, ...]:
    """Cotangents of all weights, from sums of products of codes for those that have gradients."""
    each = zip(sums, asked.of(list(of_dys)), asked.of(weights), strict=True)
    return asked.gradients([(total * (of_x * scale)).reshape(w.shape) for total, scale, w in each], weights)


def _values[Tree](tree: Tree) -> Tree:
    """Values of arguments of a forward with symbolic zeros."""
    return jax.tree.map(lambda leaf: leaf.value, tree, is_leaf=lambda leaf: hasattr(leaf, "perturbed"))
