"""Sizes that have to divide each other, and those of mesh axes as far as they are known."""

from __future__ import annotations

from math import prod

from jaxpar.config.errors import UserError
from jaxpar.config.schema import ParallelConfig


def known(parallel: ParallelConfig, *axes: str) -> int:
    """Product of the sizes of `axes`; an axis of -1, which the number of devices will decide, counts as 1."""
    return prod(size for axis in axes if (size := getattr(parallel, axis)) != -1)


def divides(key: str, size: int, by: str, divisor: int, otherwise: str = "") -> None:
    """Check that a size is a multiple of another.

    Args:
        key: of the configuration, as in `model.heads`.
        size: its value.
        by: name of what has to divide it, as in `parallel.tensor`.
        divisor: its size.
        otherwise: what else the user may do, added to the message.

    Raises:
        UserError: it is not; names both keys and the nearest multiples.
    """
    if size % divisor:
        below = size // divisor * divisor
        near = f"{below} or {below + divisor}" if below else f"{divisor}"
        raise UserError(f"{key}: {size} is not divisible by {by} ({divisor}); expected for example {near}{otherwise}")
