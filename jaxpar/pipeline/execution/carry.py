"""What a tick reads, and what it hands on to the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from jaxpar.mesh.parameters import Arrays, Weights
from jaxpar.pipeline.execution.stages import Batch
from jaxpar.runtime.observed import Observed

type Row = dict[str, jax.Array]
"""One tick of this rank: a scalar for each of `jaxpar.pipeline.execution.program.FIELDS`."""


type Held = Arrays | None
"""Buffers that only some schedules have."""


class Carry(NamedTuple):
    """The carry between ticks: the buffers of `program.BUFFERS`, gradients, and what is reported."""

    stash: Any
    arrivals: jax.Array
    cotangents: jax.Array
    outputs: jax.Array
    kept: Held
    gradients: Weights
    reported: dict[str, Float[Array, ""]]
    """What the loss reports, summed."""
    held: Held
    """Gradients of the chunks that are held."""
    report: dict[str, Float[Array, ""]]
    """The layers' metrics, summed."""
    observed: Observed | None
    """Statistics of all layers, where they collect any."""


class Seeds(NamedTuple):
    """Where a backward starts from."""

    objective: Float[Array, ""]
    """Cotangent of the objective."""
    auxiliary: Float[Array, ""]
    """Cotangent of the layers' auxiliary loss, a sum over the tokens that do not pad a row."""


class Given(NamedTuple):
    """The inputs of every tick."""

    weights: Weights
    """In storage placement."""
    layers: Any
    """The layers' weights: all of them in storage placement, or the chunks that are held."""
    microbatches: Batch
    """Arrays [microbatch, ...]."""
    seeds: Seeds | None
    """None where nothing goes backward."""
    shared: Batch
    """What each microbatch has besides, the same in all."""


type Act = Callable[[Row, Carry, Given], tuple[Any, Carry]]
"""One action of a tick: its value, and the carry after it."""
