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
    def at_most(cls, size: int, length: int, run: int | None = None) -> Blocks:
        """The fewest blocks of at most `size`, evened out so that padding is less than `count`.

        With `run` the sequence is of runs of neighbouring tokens so long, and where it costs less than twice as many
        blocks, no block has tokens of two runs: it would span all that lies between them.
        """
        if run is not None and run < length and length % run == 0:
            within = next(divisor for divisor in range(min(size, run), 0, -1) if run % divisor == 0)
            if 2 * within > min(size, run):
                return cls(length, length // within, within)
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
