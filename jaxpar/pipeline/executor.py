"""Runs a schedule inside the step's `shard_map`: the only loop over microbatches there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxpar.mesh.axes import vary, varying_axes
from jaxpar.mesh.parameters import Tree
from jaxpar.pipeline.schedules import Kind, Schedule

type Objective = Callable[[Tree, Tree], tuple[jax.Array, jax.Array]]
"""(sinks, microbatch) -> (objective to differentiate, value to report), each this rank's sum."""


def execute(
    schedule: Schedule, objective: Objective, sinks: Tree, microbatches: Tree, seed: Float[Array, ""]
) -> tuple[Tree, Float[Array, ""]]:
    """Gradients and the reported value, summed over the microbatches of `schedule`.

    `microbatches` are arrays [microbatch, ...]; `sinks` are the zeros in gradient placement that gradients accumulate
    in; `seed` is the cotangent of the objective (loss scale / token count).
    """
    assert schedule.stages == 1, "a schedule of several stages needs the parts of the model, not one objective"

    def tick(carry: tuple[Tree, jax.Array], microbatch: jax.Array) -> tuple[tuple[Tree, jax.Array], None]:
        gradients, reported = carry
        data = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, microbatch, keepdims=False), microbatches)
        value, pullback, report = jax.vjp(lambda s: objective(s, data), sinks, has_aux=True)
        (new,) = pullback(vary(seed.astype(value.dtype), varying_axes(value)))
        with jax.named_scope("gradients"):
            gradients = jax.tree.map(jnp.add, gradients, new)
        return (gradients, reported + report), None

    like = jax.eval_shape(lambda: objective(sinks, jax.tree.map(lambda a: a[0], microbatches))[1])
    carry: Any = sinks, vary(jnp.zeros((), like.dtype), like.manual_axis_type.varying)
    for kinds, ticks in schedule.runs():
        assert kinds == {Kind.FORWARD, Kind.BACKWARD}, f"no executor for ticks of {kinds}"
        rows = np.array([rank[0].microbatch for (rank,) in ticks])
        carry, _ = lax.scan(tick, carry, jnp.asarray(rows))
    return carry
