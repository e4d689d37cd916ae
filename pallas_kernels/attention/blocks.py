"""Cutting a sequence into equal blocks, and looping over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped


@dataclass(frozen=True)
class Blocks:
    """A sequence of `length` as `count` blocks of `size`; the last one is padded where they do not come out even."""

    length: int
    count: int
    size: int

    @classmethod
    def at_most(cls, size: int, length: int) -> Blocks:
        """The fewest blocks of at most `size`, evened out so that padding is less than `count`."""
        count = -(-length // size)
        return cls(length, count, -(-length // count))

    def split(self, x: Shaped[Array, "batch seq ..."], **padding: Any) -> Shaped[Array, "count batch size ..."]:
        """Cut the sequence; `padding` goes to `jnp.pad` (zeros by default)."""
        missing = self.count * self.size - self.length
        if missing:
            x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2), **padding)
        return jnp.moveaxis(x.reshape(x.shape[0], self.count, self.size, *x.shape[2:]), 1, 0)

    def join(self, x: Shaped[Array, "count batch size ..."]) -> Shaped[Array, "batch seq ..."]:
        """Undo `split`."""
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(x.shape[0], self.count * self.size, *x.shape[3:])[:, : self.length]


def loop[Carry](step: Callable[[Carry, Any], tuple[Carry, Any]], carry: Carry, xs: Any) -> tuple[Carry, Any]:
    """`lax.scan`, which calls `step` directly where there is a single block."""
    if jax.tree.leaves(xs)[0].shape[0] > 1:
        return lax.scan(step, carry, xs)
    carry, y = step(carry, jax.tree.map(lambda x: x[0], xs))
    return carry, jax.tree.map(lambda y: y[None], y)
