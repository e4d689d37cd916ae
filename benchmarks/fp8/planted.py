"""`jaxpar.train` with an outlier planted in what quantized matmuls read: how much of the rest a scale leaves.

    python -m benchmarks.fp8.planted 65536 --config configs/quickstart.yaml --set precision.matmul=fp8_block

In each token the first channel that enters a group of quantized matmuls is set to the magnitude, and the rows of the
matrices that multiply it are zero. So the channel means nothing, and without rounding the model is the one without it;
but it is by far the largest number that a scale has to reach.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar import train
from jaxpar.layers.ops import quantized
from jaxpar.precision import dense


def planted(
    magnitude: float, x: Float[Array, "batch part *inputs"], weights: Sequence[Float[Array, "..."]]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The input with the outlier, and the matrices [*inputs, *outputs] that do not see it."""
    first = (0,) * (x.ndim - 2)
    blind = tuple(w.at[first].set(jnp.zeros((), w.dtype)) for w in weights)
    return x.at[:, :, *first].set(jnp.asarray(magnitude, x.dtype)), blind


def products(magnitude: float, x: Any, weights: Any, *rest: Any, **named: Any) -> tuple[jax.Array, ...]:
    """`jaxpar.precision.dense.products` with the outlier."""
    return dense.products(*planted(magnitude, x, weights), *rest, **named)


def main(arguments: Sequence[str]) -> int:
    """Command line: the magnitude, then what `jaxpar.train` takes; the exit code is that of `jaxpar.train`."""
    magnitude, *rest = arguments
    quantized.products = partial(products, float(magnitude))
    return train.main(rest)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
