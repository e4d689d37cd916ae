"""A chunk of tokens as an affine map of a state, which all implementations apply one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, PyTree

CHUNK = 64
"""Tokens of a chunk of the kernels: what one wgmma computes."""


class Chunk(NamedTuple):
    """The effect of tokens on the state S before them, and their outputs:

        u = made - removed S        out = read S + scores u        S' = keep S + write^T u

    Decays are in `read`, `scores`, `removed`, `write` and `keep`, whose factors are at most 1; the delta rule makes
    `made` and `removed`, the U and W of its UT transform (Yang et al. 2024, arXiv:2406.06484).
    """

    read: Float[Array, "*batch heads seq key"]
    scores: Float[Array, "*batch heads seq seq"]
    made: Float[Array, "*batch heads seq value"]
    removed: Float[Array, "*batch heads seq key"] | None
    """None without the delta rule."""
    write: Float[Array, "*batch heads seq key"]
    keep: Float[Array, "*batch heads width"]
    """The width is that of keys, or 1."""


type Prepare = Callable[[PyTree, PyTree], Chunk]
"""Makes a chunk, float32, of its inputs and of what has no gradient."""


class Passed(NamedTuple):
    """The result of a kernel."""

    rows: Float[Array, "chunks heads seq value"]
    """Outputs; of the backward, gradients of `made`."""
    states: Float[Array, "chunks heads key value"] | None
    """Before the step of each chunk, rounded as they are multiplied; None where they are not saved. Of the backward,
    gradients of the states behind the chunks."""
    end: Float[Array, "heads key value"]
    """The state after all steps, float32; of the backward, the gradient of the first state."""
