"""Adafactor (Shazeer and Stern 2018, arXiv:1804.04235): second moments of a matrix as row means and column means."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpar.config.mappings.optimizers import AdafactorOptions
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.optim.rule import Rule, RuleRequest

DECAY_POWER = 0.8
"""The second moment after update t (from 1) decays by `1 - t^-0.8`, so that it needs no bias correction."""
LARGEST_UPDATE = 1.0
"""Largest root mean square of a weight's direction; a longer one is scaled down."""
SMALLEST_SQUARE, SMALLEST_WEIGHT = 1e-30, 1e-3
"""The paper's epsilon 1, added to squares, and epsilon 2, the least root mean square of a weight in relative steps."""


def adafactor(request: RuleRequest) -> Rule:
    """Algorithms 4 and 5 without momentum, for one weight; each layer of a stack by itself, and
    each stacked matrix.

    A matrix (or table) `[inputs..., outputs...]` keeps R, the means of squared gradients over its outputs, and C, those
    over its inputs: an element's second moment is `R C / mean(R)`. Norms and biases keep theirs whole. Means are over
    the whole weight, so each is a `reduce_sum` over the axes that split its dims: of R, of C, and of a scalar a layer
    for the mean of R, for the length of the direction and, with the option `relative`, for that of the weight.
    """
    spec, layout, stack = request.spec, request.layout, request.spec.stack
    every = tuple(range(stack, len(spec.shape)))
    inputs, outputs = every[: spec.inputs], every[spec.inputs :]
    matrix, relative = spec.decay, request.options(AdafactorOptions).relative

    def mean(x: Float[Array, "..."], dims: Sequence[int]) -> Float[Array, "..."]:
        """Mean over global `dims`, which stay with size 1; padding of the vocabulary, which is zero, does not count."""
        axes = [axis for dim in dims for axis in axes_of_dim(layout, dim)]
        total = reduce_sum(x.sum(axis=tuple(dims), keepdims=True), sorted(axes))
        return total / prod(spec.unpadded_shape[dim] for dim in dims)

    def root_mean_square(x: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.sqrt(mean(jnp.square(x), every))

    def direction(gradient, weight, state, step, arguments):
        decay = 1.0 - (step.astype(jnp.float32) + 1.0) ** -DECAY_POWER
        square = jnp.square(gradient) + SMALLEST_SQUARE
        if matrix:
            rows = decay * jnp.expand_dims(state["rows"], outputs) + (1 - decay) * mean(square, outputs)
            columns = decay * jnp.expand_dims(state["columns"], inputs) + (1 - decay) * mean(square, inputs)
            update = gradient * (rows / mean(rows, inputs)) ** -0.5 * columns**-0.5
            state = {"rows": rows.squeeze(outputs), "columns": columns.squeeze(inputs)}
        else:
            nu = decay * state["nu"] + (1 - decay) * square
            update, state = gradient * nu**-0.5, {"nu": nu}
        update /= jnp.maximum(1.0, root_mean_square(update) / LARGEST_UPDATE)
        if relative:
            update *= jnp.maximum(SMALLEST_WEIGHT, root_mean_square(weight))
        return update, state

    layers = tuple(range(stack))
    dims_of_state = {"rows": layers + inputs, "columns": layers + outputs} if matrix else {"nu": layers + every}
    return Rule({name: request.array_spec(dims) for name, dims in dims_of_state.items()}, direction, "matrix")
