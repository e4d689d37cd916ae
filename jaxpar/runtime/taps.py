"""Matmuls by name, so that a backward can be split: the input's gradient now, the weights' gradient later.

A layer calls each of its groups of matmuls through a *tap*. The plain one only calls the group. The splitting one keeps
what the weights' gradient will need: the group's input and the gradient of its output. It gets both from one backward
that does not differentiate the weights: the output's gradient is the cotangent of a zero that is added to the output,
the input is the "cotangent" of a second zero. Nothing runs twice (zero-bubble pipelines, arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

type Outputs = PyTree[jax.Array]
"""The outputs of a group of matmuls."""

type Group = Callable[[str, jax.Array], Outputs]
"""(name of a group of matmuls, its input) -> its outputs."""

type Tap = Callable[[str, Group, jax.Array], Outputs]
"""Calls a group: (name, group, input) -> its outputs."""

type Taps = Mapping[str, tuple[jax.Array, Outputs]]
"""Zeros like the input and like the outputs of each group."""


def tapping(taps: Taps) -> Tap:
    """A tap that makes a group's input, and the gradient of its outputs, the cotangents of `taps[name]`."""

    def tap(name: str, group: Group, x: jax.Array) -> Outputs:
        into, out = taps[name]
        return jax.tree.map(jnp.add, group(name, _keep(x, into)), out)

    return tap


def recording(groups: dict[str, tuple[jax.Array, Outputs]]) -> Tap:
    """A tap that writes each group's input and outputs into `groups`."""

    def tap(name: str, group: Group, x: jax.Array) -> Outputs:
        y = group(name, x)
        assert name not in groups, f"a layer has two groups of matmuls named {name!r}"
        groups[name] = x, y
        return y

    return tap


@jax.custom_vjp
def _keep(x: jax.Array, tap: jax.Array) -> jax.Array:
    """`x`; what the backward returns for `tap` is `x` itself."""
    del tap
    return x


_keep.defvjp(lambda x, tap: (x, x), lambda x, dy: (dy, x))
