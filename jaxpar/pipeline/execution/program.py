"""The executor's program: microbatch, chunk and slots for each tick and rank.

Every rank runs the same program, so a row explains how to use what the program computes: an action that a rank does not
have in a tick is computed all the same, and its result is not counted and is written to an empty slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.table import Schedule

BUFFERS = ("stash", "arrivals", "cotangents", "outputs", "kept", "weights", "gradients")
"""Buffers that ranks keep between ticks: a chunk's activations from F to B; inputs from their arrival to F; output
gradients from their arrival to B; the last chunk's output from F to B; what a split backward leaves for W; where chunks
are held, their gathered weights, and their gradients before they are scattered."""

SOURCES = ("before", "behind", "self")
"""The sender of a value that arrives after a tick: the previous rank, the next rank, or this rank itself."""

NOTHING = -1
"""Value in place of a slot: nothing arrives."""

EMBEDDING, ARRIVAL, STASHED = range(3)
"""Source of the input of a forward. `STASHED` repeats a forward into its own slot, when a rank has nothing to
do and no slot is free: it rewrites the same values."""

ARRIVALS = tuple(f"{what}_{source}" for what in "yg" for source in SOURCES)
"""The slots of what arrives after a tick."""

FIELDS = (
    "f_counts", "f_microbatch", "f_chunk", "f_source", "f_arrival", "f_slot", "f_last", "f_output",
    "b_counts", "b_microbatch", "b_chunk", "b_slot", "b_first", "b_last", "b_cotangent", "b_output", "b_kept",
    "w_counts", "w_chunk", "w_kept",
    "f_weights", "b_weights", "b_gradients",
    *ARRIVALS,
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """Ticks in a row with the same signature: one loop."""

    kinds: frozenset[Kind]
    head: bool
    """Whether the last chunk goes backward in these ticks (forward, where there is no backward): the loss is due."""
    first: int
    """Number of the first tick."""
    ticks: int
    arrivals: frozenset[str]
    """The fields among `y_before` ... `g_self` by which something arrives after some of these ticks."""


@dataclass(frozen=True)
class Loop:
    """Runs that come one after the other, several times over."""

    runs: tuple[Run, ...]
    """Runs of the first repetition; in each next one all tick numbers are `ticks` higher."""
    repeats: int

    @property
    def first(self) -> int:
        """Number of the first tick."""
        return self.runs[0].first

    @property
    def ticks(self) -> int:
        """Ticks of one repetition."""
        return sum(run.ticks for run in self.runs)


class Window(NamedTuple):
    """A chunk of every rank that is held in a slot."""

    chunk: int
    slot: int


@dataclass(frozen=True)
class PipelineProgram:
    """The rows of every tick, and how many slots each buffer has."""

    schedule: Schedule
    rows: dict[str, np.ndarray]
    """An int32 array [tick, rank] for each of `FIELDS`."""
    slots: dict[str, int]
    """Slots of each of `BUFFERS`."""
    loops: tuple[Loop, ...]
    loads: dict[int, list[Window]]
    """Chunks to gather before a tick, if gathered chunks stay for all microbatches."""
    releases: dict[int, list[Window]]
    """Chunks whose gradients are complete before a tick (or after the last), if gathered chunks stay."""
    branching: bool
    """Whether a rank computes its own actions alone, by branching on its row."""

    @property
    def ticks(self) -> int:
        """Ticks of the whole program."""
        return len(self.rows["f_counts"])

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of all loops, each as often as it is written in the program."""
        return tuple(run for loop in self.loops for run in loop.runs)

    @property
    def holds(self) -> bool:
        """Whether a chunk's weights are gathered once for all microbatches, and its gradients scattered once."""
        return bool(self.loads)

    @property
    def wraps(self) -> bool:
        """Whether the first and the last rank are neighbours, as in a round-robin placement of chunks."""
        edges = self.rows["y_before"][:, 0], self.rows["g_behind"][:, -1]
        return any((end != NOTHING).any() for end in edges) and self.schedule.ranks > 1

    @property
    def last_rank(self) -> int:
        """The rank of the last chunk, which computes the loss."""
        return self.schedule.rank_of[-1]
