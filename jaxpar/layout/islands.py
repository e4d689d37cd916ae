"""The state of islands between steps: what each island has for itself is stacked over the mesh axis `islands`.

`TrainState.master` has the global weights, which evaluations, samples and exports read; the islands' weights and the
momentum of the outer optimizer are parts of the optimizer state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxpar.config.axes import ISLANDS
from jaxpar.layout.state import TrainState
from jaxpar.mesh.parameters import Weights

ISLAND_WEIGHTS, OUTER_MOMENTUM = "island", "outer_momentum"
"""Names in the optimizer state of the weights of each island, and of the momentum of the outer optimizer."""


ROUND_START, EAGER_MOMENTUM = "round_start", "eager_momentum"
"""Names in the optimizer state, with `islands.eager`, of each island's weights at the start of a round, and of the
momentum of its outer gradients alone."""


class OuterState(NamedTuple):
    """The weights that all islands share, and the momentum of their optimizer; float32, in optimizer placement."""

    weights: Weights
    momentum: Weights


class EagerState(NamedTuple):
    """An island's state with `islands.eager`; float32, in optimizer placement."""

    start: Weights
    """Its weights at the start of the round."""
    momentum: Weights
    """The momentum of its outer gradients alone."""


def partition_over_islands[Layout](layout: Layout) -> Layout:
    """The partition of each array, from that of one island's part."""
    is_leaf = lambda x: isinstance(x, PartitionSpec)
    return jax.tree.map(lambda spec: PartitionSpec(ISLANDS, *spec), layout, is_leaf=is_leaf)


def state_layout_of_islands(layout: TrainState, eager: bool) -> TrainState:
    """The partitions of the state, from those of one island's state."""
    island = with_eager(layout, EagerState(layout.master, layout.master)) if eager else layout
    each = partition_over_islands(
        (island.master, island.optimizer, island.applied, island.skipped_in_row, island.carried)
    )
    return _joined(island, island.master, each)


def initial_state_of_islands(state: TrainState, islands: int, eager: bool) -> TrainState:
    """The state before the first step, from that of one island: all begin alike. To be traced."""
    zeros = jax.tree.map(jnp.zeros_like, state.master)
    state = with_eager(state, EagerState(state.master, zeros)) if eager else state
    each = replicate_over_islands(
        (state.master, state.optimizer, state.applied, state.skipped_in_row, state.carried), islands
    )
    return _joined(state, zeros, each)


def replicate_over_islands[Tree](tree: Tree, islands: int) -> Tree:
    """Copies of arrays, [island, ...]."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (islands, *a.shape)), tree)


def entered(state: TrainState) -> tuple[TrainState, OuterState]:
    """The state of this device's island as steps know it, and the state that islands share. Inside the step's map."""
    mine = lambda tree: jax.tree.map(lambda a: lax.squeeze(a, (0,)), tree)
    optimizer = dict(state.optimizer)
    momentum, master = optimizer.pop(OUTER_MOMENTUM), optimizer.pop(ISLAND_WEIGHTS)
    master, optimizer, applied, skipped, carried = mine(
        (master, optimizer, state.applied, state.skipped_in_row, state.carried)
    )
    island = state._replace(
        master=master, optimizer=optimizer, applied=applied, skipped_in_row=skipped, carried=carried
    )
    return island, OuterState(state.master, momentum)


def left(island: TrainState, outer: OuterState) -> TrainState:
    """The inverse of `entered`."""
    each = stacked((island.master, island.optimizer, island.applied, island.skipped_in_row, island.carried))
    return _joined(island._replace(master=outer.weights), outer.momentum, each)


def without_eager(island: TrainState) -> tuple[TrainState, EagerState]:
    """The island as steps know it, and its state of eager updates."""
    optimizer = dict(island.optimizer)
    eager = EagerState(optimizer.pop(ROUND_START), optimizer.pop(EAGER_MOMENTUM))
    return island._replace(optimizer=optimizer), eager


def with_eager(island: TrainState, eager: EagerState) -> TrainState:
    """The inverse of `without_eager`."""
    return island._replace(optimizer={**island.optimizer, ROUND_START: eager.start, EAGER_MOMENTUM: eager.momentum})


def with_outer_state(state: TrainState, change: Callable[[Any], Any]) -> TrainState:
    """`state`, or its shardings, with `change` of each array that islands share: global weights and outer momentum."""
    momentum = jax.tree.map(change, state.optimizer[OUTER_MOMENTUM])
    master = jax.tree.map(change, state.master)
    return state._replace(master=master, optimizer={**state.optimizer, OUTER_MOMENTUM: momentum})


def stacked[Tree](tree: Tree) -> Tree:
    """Arrays of this device's island as its part of arrays of all islands."""
    return jax.tree.map(lambda a: lax.expand_dims(a, (0,)), tree)


def _joined(state: TrainState, momentum: Weights, each: tuple[Any, ...]) -> TrainState:
    """`state` with its global weights, and all else that `each` has of each island."""
    master, optimizer, applied, skipped, carried = each
    optimizer = {**optimizer, ISLAND_WEIGHTS: master, OUTER_MOMENTUM: momentum}
    return state._replace(optimizer=optimizer, applied=applied, skipped_in_row=skipped, carried=carried)
