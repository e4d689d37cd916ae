"""Arguments of a pass through a chunk of layers: the store of its weights, and where activations and gradients go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import jax
from jaxtyping import Array, Bool, Float, PyTree

from jaxpar.mesh.layer_order import Chunk, Index
from jaxpar.mesh.parameters import Arrays
from jaxpar.runtime.observed import Maxima

type Valid = Bool[Array, ""] | bool

type Context = PyTree
"""The tokens of a microbatch as the layers of a kind need them."""

type Tokens = Mapping[str, Context]
"""Facts about the tokens of a microbatch that layers need, by the layers' kind."""

type Stream = Float[Array, "batch part embed"]
"""The residual stream: a chunk's input or output."""

type Report = Mapping[str, Float[Array, ""]]
"""Named values: this rank's part of a sum over the tokens of a microbatch that do not pad a row, whatever the loss
mask. The step adds it up over layers, microbatches and all ranks, and divides by the number of these tokens in the
batch. A value that tensor ranks have in common is reported in shares, or it is added once per rank.

A name `<block>.<value>` is of a block that also reports `<block>.tokens`, the number of these tokens: a run records the
mean over tokens and layers. `<block>.<value>.<layer>` is of one layer of the model, and 0 in the others."""

AUXILIARY_LOSS = "auxiliary_loss"
"""The report that is added to the objective, and so has a gradient; all others are only metrics."""

ALWAYS_SAVED = "always_saved"
"""The name of small numbers that every remat policy saves: those that need messages between ranks, or decide
which rows move."""

type Output = tuple[jax.Array, Report]
"""The output of a layer: the residual stream, and its report."""


class Saved(NamedTuple):
    """Storage of what a pass saves for its backward."""

    stashes: Mapping[tuple[str, int], PyTree]
    """Buffers of rows that keep the same, by kind of layers and the first of these rows."""
    slot: Index
    """The slot of this pass in each of the buffers."""


class Cotangents(NamedTuple):
    """The cotangents of a pass's results."""

    y: jax.Array
    """The cotangent of the output, [batch part embed]."""
    reports: Mapping[str, Float[Array, ""]] = {}
    """Cotangents of the reports of layers, by name; other reports have none."""


class Accumulator(NamedTuple):
    """Accumulator of the gradients of a chunk's weights, in gradient placement."""

    chunk: Chunk
    valid: Valid = True
    """Whether gradients are added."""
    fresh: Valid = False
    """Whether nothing has accumulated yet: gradients in host memory are then uninitialised."""
    taps_slot: Index = 0
    """Values that a split backward saves for the gradients of matrices."""


class Side(NamedTuple):
    """Results of passes besides activations and gradients."""

    metrics: Mapping[str, Float[Array, ""]]
    """The sums of what layers report."""
    taps: Arrays | None
    """Values that split backwards leave for the gradients of matrices, [slot, row, ...]: inputs and output gradients of
    matmuls."""
    observed: Maxima | None
    """Statistics of all layers, where they collect any."""


type Stack = PyTree
"""The weights of one kind of layers on this rank, or their gradients, as a store has them: arrays [row, ...]."""


class WeightStore(Protocol):
    """Source of the weights of one kind of layers in a pass, and destination of their gradients.

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
