"""The state of islands between steps: what each island has for itself is stacked over the mesh axis `islands`.

`TrainState.master` has the global weights, which evaluations, samples and exports read; the islands' weights and the
momentum of the outer optimizer are parts of the optimizer state.
"""

from __future__ import annotations

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


class OuterState(NamedTuple):
    """The weights that all islands share, and the momentum of their optimizer; float32, in optimizer placement."""

    weights: Weights
    momentum: Weights


def of_islands[Layout](layout: Layout) -> Layout:
    """The partition of each array, from that of one island's part."""
    is_leaf = lambda x: isinstance(x, PartitionSpec)
    return jax.tree.map(lambda spec: PartitionSpec(ISLANDS, *spec), layout, is_leaf=is_leaf)


def state_layout_of_islands(layout: TrainState) -> TrainState:
    """The partitions of the state, from those of one island's state."""
    each = of_islands((layout.master, layout.optimizer, layout.applied, layout.skipped_in_row, layout.carried))
    return _joined(layout, layout.master, each)


def initial_state_of_islands(state: TrainState, islands: int) -> TrainState:
    """The state before the first step, from that of one island: all begin alike. To be traced."""
    each = on_each_island((state.master, state.optimizer, state.applied, state.skipped_in_row, state.carried), islands)
    return _joined(state, jax.tree.map(jnp.zeros_like, state.master), each)


def on_each_island[Tree](tree: Tree, islands: int) -> Tree:
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


def stacked[Tree](tree: Tree) -> Tree:
    """Arrays of this device's island as its part of arrays of all islands."""
    return jax.tree.map(lambda a: lax.expand_dims(a, (0,)), tree)


def _joined(state: TrainState, momentum: Weights, each: tuple[Any, ...]) -> TrainState:
    """`state` with its global weights, and all else that `each` has of each island."""
    master, optimizer, applied, skipped, carried = each
    optimizer = {**optimizer, ISLAND_WEIGHTS: master, OUTER_MOMENTUM: momentum}
    return state._replace(optimizer=optimizer, applied=applied, skipped_in_row=skipped, carried=carried)
