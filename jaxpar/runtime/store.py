"""The protocol between the loop over layers and the memory that their weights come from and gradients go to."""

from __future__ import annotations

from typing import Protocol

import jax
from jaxtyping import PyTree

from jaxpar.mesh.layer_order import Index
from jaxpar.mesh.parameters import Arrays
from jaxpar.runtime.passes import Accumulator

type Stack = PyTree
"""The weights of one kind of layers on this rank, or their gradients, as a store has them: arrays [row, ...]."""


class WeightStore(Protocol):
    """Where the weights of one kind of layers come from in a pass, and where their gradients go.

    All functions are traced inside the step's map. `row` is an index in the stacks.
    """

    @property
    def ahead(self) -> bool:
        """Whether a row takes time to fetch, so that it is fetched while the layer before computes."""
        ...

    def fetch(self, weights: Stack, row: Index, like: int) -> Arrays:
        """The weights of a row in compute placement. `like` is a row of a chunk that is stored in the same dtypes."""
        ...

    def operands(self, fetched: Arrays) -> Arrays:
        """Fetched weights in the dtypes in which a layer takes them."""
        ...

    def again(self, weights: Stack, x: jax.Array) -> tuple[Stack, jax.Array]:
        """`weights` for a second pass, which fetches nothing before `x` is computed."""
        ...

    def add(self, gradients: Stack, new: Arrays, row: Index, into: Accumulator) -> Stack:
        """`gradients` (gradient placement) with those of a layer (compute placement) added to a row."""
        ...
