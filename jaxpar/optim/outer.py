"""The outer optimizer of islands (DiLoCo, arXiv:2311.08105; Streaming DiLoCo, arXiv:2501.18512; eager updates,
arXiv:2502.12996).

Each island takes `every` steps of its optimizer from the global weights. The mean over the islands of the global
weights minus an island's is the outer gradient, with which SGD with momentum updates the global weights; islands
continue from these. With `fragments` F, the row r of the first dim of each weight (a layer, where layers are stacked)
is in fragment r mod F, and one fragment is exchanged each `every` / F steps.

Pure functions of arrays, of NumPy or JAX: how messages travel is the caller's.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt8

from jaxpar.mesh.quantized.blocks import decode, encode, row_bytes

type Values = PyTree
"""Floats, an array of NumPy or of JAX."""
type Steps = Int[Array, ""] | int
"""Steps taken so far."""


class OuterArguments(NamedTuple):
    """Numbers of the section `islands` that an outer update reads."""

    rate: Float[Array, ""] | float
    momentum: Float[Array, ""] | float
    mix: Float[Array, ""] | float
    """Share of the island's weights in its weights after an exchange; the rest is of the global weights."""


def outer_gradient(shared: Values, local: Values) -> Values:
    """The outer gradient of one island; that of an update is the mean over islands."""
    return shared - local


def outer_update(
    shared: Values,
    momentum: Values,
    gradient: Values,
    arguments: OuterArguments,
    nesterov: bool,
) -> tuple[Values, Values]:
    """(global weights, momentum) after an outer update, as PyTorch's SGD: `m <- mu m + g`, and the weights move by the
    rate times m, or times `g + mu m` with Nesterov momentum."""
    momentum = arguments.momentum * momentum + gradient
    direction = gradient + arguments.momentum * momentum if nesterov else momentum
    return shared - arguments.rate * direction, momentum


def eager_move(
    momentum: Values, gradient: Values, arguments: OuterArguments, nesterov: bool, islands: int
) -> tuple[Values, Values]:
    """(an island's weights at the start of a round minus the global ones, momentum of its outer gradients), as in eager
    updates (arXiv:2502.12996, algorithm 3).

    In the paper an island of M takes an outer step from its last start of a round along `(g_t + others) / M`: its
    outer gradient of the round that ended, and those of the others of the round before. SGD with momentum is linear in
    its gradients, so the outcome is the global weights, updated with all outer gradients of the round before, plus
    1 / M of the step along the island's outer gradients alone: what it applied early cancels when the mean arrives.

    Args:
        momentum: of the island's outer gradients.
        gradient: the island's weights at the start of the round that ended, minus those at its end.
        arguments: of outer updates.
        nesterov: whether the momentum is Nesterov's.
        islands: M.
    """
    return outer_update(0.0, momentum, gradient, arguments._replace(rate=arguments.rate / islands), nesterov)


def mixed(local: Values, shared: Values, mix: Float[Array, ""] | float) -> PyTree:
    """The weights of an island after an exchange; the bits of the global ones where `mix` is 0."""
    return shared + mix * (local - shared)


def is_sent(step: Steps, every: int, fragments: int) -> Bool[Array, ""] | bool:
    """Whether the outer gradient of a fragment is taken of the weights after `step` steps."""
    return (step > 0) & (step % (every // fragments) == 0)


def fragment_sent(step: Steps, every: int, fragments: int) -> Steps:
    """The fragment whose outer gradient is taken after `step` steps, where `is_sent`."""
    return (step // (every // fragments) - 1) % fragments


def encode_message(rows: Values, message_dtype: str | None) -> PyTree:
    """An outer gradient as the array that travels: float32, or the bytes of codes with a scale for each 256 elements.

    Codes are rounded to the nearest. The error of an element is at most 1/250 of the largest of its block under int8,
    and under int4 at most the larger of 1/2 of itself and 1/100 of the largest.
    """
    return rows if message_dtype is None else encode(jnp.asarray(rows), message_dtype)


def decode_message(
    sent: UInt8[Array, "rows bytes"] | PyTree, elements: int, message_dtype: str | None
) -> Float[Array, "rows elements"]:
    """The outer gradient that `encode_message` sent."""
    return sent if message_dtype is None else decode(jnp.asarray(sent), elements, message_dtype)


def message_bytes(elements: int, message_dtype: str | None) -> int:
    """Bytes of a row of `elements` that travels."""
    return 4 * elements if message_dtype is None else row_bytes(elements, message_dtype)
