"""From a schedule's ticks to what the executor reads: for each tick and rank, which microbatch, chunk and slots.

Every rank runs the same program, so a row says what to do with what the program computes: an action that a rank does
not have in a tick is computed all the same, and its result is not counted and goes to a slot that holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.slots import Lifetime, assign_slots, free_slot, slot_count
from jaxpar.pipeline.table import Schedule, Tick

BUFFERS = ("stash", "arrivals", "cotangents", "outputs", "kept")
"""What ranks keep between ticks: a chunk's activations from F to B; inputs from their arrival to F; output gradients
from their arrival to B; the last chunk's output from F to B; what a split backward leaves for W."""

SOURCES = ("before", "behind", "self")
"""Where what arrives after a tick comes from: the rank before, the rank behind, or this rank itself."""

NOTHING = -1
"""In place of a slot: nothing arrives."""

EMBEDDING, ARRIVAL, STASHED = range(3)
"""Where the input of a forward comes from. `STASHED` repeats a forward into its own slot, when a rank has nothing to
do and no slot is free: what it writes is what stands there."""

FIELDS = (
    "f_counts", "f_microbatch", "f_chunk", "f_source", "f_arrival", "f_slot", "f_last", "f_output",
    "b_counts", "b_microbatch", "b_chunk", "b_slot", "b_first", "b_last", "b_cotangent", "b_output", "b_kept",
    "w_counts", "w_chunk", "w_kept",
    *(f"{what}_{source}" for what in "yg" for source in SOURCES),
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """Ticks in a row with the same signature: one loop."""

    kinds: frozenset[Kind]
    head: bool
    """Whether the last chunk goes backward in these ticks, so that loss and head are due."""
    first: int
    """Number of the first tick."""
    ticks: int
    arrivals: frozenset[str]
    """The fields among `y_before` ... `g_self` by which something arrives after some of these ticks."""


@dataclass(frozen=True)
class PipelineProgram:
    """The rows of every tick, and how many slots each buffer has."""

    schedule: Schedule
    rows: dict[str, np.ndarray]
    """For each of `FIELDS` an int32 array [tick, rank]."""
    slots: dict[str, int]
    """Slots of each of `BUFFERS`."""
    runs: tuple[Run, ...]

    @property
    def wraps(self) -> bool:
        """Whether the first and the last rank are neighbours, as they are where chunks go round and round."""
        ends = self.rows["y_before"][:, 0], self.rows["g_behind"][:, -1]
        return any((end != NOTHING).any() for end in ends) and self.schedule.ranks > 1

    @property
    def last_rank(self) -> int:
        """The rank of the last chunk, which computes the loss."""
        return self.schedule.rank_of[-1]


def make_program(schedule: Schedule, ticks: Sequence[Tick] | None = None) -> PipelineProgram:
    """The program of `schedule`, or of other ticks of its actions (a schedule of forwards alone is fine)."""
    return _Maker(schedule, schedule.ticks if ticks is None else ticks).make()


class _Maker:
    def __init__(self, schedule: Schedule, ticks: Sequence[Tick]):
        self.schedule, self.ticks = schedule, ticks
        self.when = {a: t for t, tick in enumerate(ticks) for actions in tick for a in actions}
        self.rows = {name: np.zeros((len(ticks), schedule.ranks), np.int32) for name in FIELDS}
        for name in FIELDS[-6:]:
            self.rows[name][:] = NOTHING
        self.last = schedule.chunks - 1
        self.lifetimes = {buffer: [dict() for _ in range(schedule.ranks)] for buffer in BUFFERS}

    def make(self) -> PipelineProgram:
        for action in self.when:
            self._note_lifetimes(action)
        self.slots = {b: [assign_slots(lives) for lives in ranks] for b, ranks in self.lifetimes.items()}
        self.counts = {b: max(slot_count(s.values()) for s in ranks) for b, ranks in self.slots.items()}
        for tick, ranks in enumerate(self.ticks):
            for rank, actions in enumerate(ranks):
                for action in actions:
                    self._write(tick, rank, action)
                self._idle(tick, rank, {action.kind for action in actions})
        return PipelineProgram(self.schedule, self.rows, dict(self.counts), tuple(self._runs()))

    def _note_lifetimes(self, action: Action) -> None:
        """What `action` needs to lie somewhere, from when it is made until `action` uses it."""
        rank, tick = self.schedule.rank_of[action.chunk], self.when[action]
        name = action.microbatch, action.chunk
        note = lambda buffer, first: self.lifetimes[buffer][rank].__setitem__(name, Lifetime(first, tick))
        match action.kind:
            case Kind.FORWARD:
                if action.chunk > 0:  # arrives after its tick, so its slot is taken from the next one on
                    note("arrivals", self.when[Action(Kind.FORWARD, action.microbatch, action.chunk - 1)] + 1)
            case Kind.BACKWARD:
                forward = self.when[Action(Kind.FORWARD, *name)]
                note("stash", forward)
                if action.chunk == self.last:
                    note("outputs", forward)
                else:
                    note("cotangents", self.when[Action(Kind.BACKWARD, action.microbatch, action.chunk + 1)] + 1)
            case Kind.WEIGHT:
                note("kept", self.when[Action(Kind.BACKWARD, *name)])

    def _write(self, tick: int, rank: int, action: Action) -> None:
        name = action.microbatch, action.chunk
        slot = lambda buffer: self.slots[buffer][rank].get(name, 0)
        chunk = self.schedule.chunks_of[rank].index(action.chunk)
        row = {"counts": 1, "microbatch": action.microbatch, "chunk": chunk}
        match action.kind:
            case Kind.FORWARD:
                row |= {
                    "source": ARRIVAL if action.chunk else EMBEDDING, "arrival": slot("arrivals"),
                    "slot": slot("stash"), "last": action.chunk == self.last, "output": slot("outputs"),
                }  # fmt: skip
                self._send(tick, rank, "y", Action(Kind.FORWARD, action.microbatch, action.chunk + 1), "arrivals")
            case Kind.BACKWARD:
                row |= {
                    "slot": slot("stash"), "first": action.chunk == 0, "last": action.chunk == self.last,
                    "cotangent": slot("cotangents"), "output": slot("outputs"), "kept": slot("kept"),
                }  # fmt: skip
                self._send(tick, rank, "g", Action(Kind.BACKWARD, action.microbatch, action.chunk - 1), "cotangents")
            case Kind.WEIGHT:
                row = {"counts": 1, "chunk": chunk, "kept": slot("kept")}
        for field, value in row.items():
            self.rows[f"{action.kind.value.lower()}_{field}"][tick, rank] = value

    def _send(self, tick: int, rank: int, what: str, following: Action, buffer: str) -> None:
        """Note with the receiver that what this action makes arrives after this tick."""
        if following not in self.when:
            return
        to, ranks = self.schedule.rank_of[following.chunk], self.schedule.ranks
        neighbours = {(rank + 1) % ranks: "before", (rank - 1) % ranks: "behind"}
        if ranks == 2:  # both neighbours are the same rank: forwards go one way round, backwards the other
            neighbours = {1 - rank: "before" if what == "y" else "behind"}
        field = f"{what}_{'self' if to == rank else neighbours[to]}"
        assert self.rows[field][tick, to] == NOTHING, f"rank {to} gets two things in one way after tick {tick}"
        self.rows[field][tick, to] = self.slots[buffer][to][following.microbatch, following.chunk]

    def _idle(self, tick: int, rank: int, kinds: set[Kind]) -> None:
        """What a rank does in a tick in which others go forward or backward and it does not."""
        present = {action.kind for actions in self.ticks[tick] for action in actions}
        if Kind.FORWARD in present - kinds:
            self._idle_forward(tick, rank)
        if Kind.BACKWARD in present - kinds and self.counts["kept"]:
            slot = free_slot(self.slots["kept"][rank], self.lifetimes["kept"][rank], tick, self.counts["kept"])
            if slot is None:
                slot = self.counts["kept"]
                self.counts["kept"] += 1
            self.rows["b_kept"][tick, rank] = slot

    def _idle_forward(self, tick: int, rank: int) -> None:
        if not self.counts["stash"]:
            return
        slots, lives = self.slots["stash"][rank], self.lifetimes["stash"][rank]
        slot = free_slot(slots, lives, tick, self.counts["stash"])
        if slot is not None:
            self.rows["f_slot"][tick, rank] = slot
            return
        name = next(name for name, life in lives.items() if life.first < tick <= life.last)
        again = {"microbatch": name[0], "chunk": self.schedule.chunks_of[rank].index(name[1]), "slot": slots[name]}
        for field, value in (again | {"source": STASHED}).items():
            self.rows[f"f_{field}"][tick, rank] = value

    def _runs(self) -> list[Run]:
        def signature(tick: int) -> tuple[frozenset[Kind], bool]:
            kinds = frozenset(action.kind for actions in self.ticks[tick] for action in actions)
            return kinds, bool((self.rows["b_last"][tick] & self.rows["b_counts"][tick]).any())

        runs = []
        for (kinds, head), group in groupby(range(len(self.ticks)), key=signature):
            numbers = list(group)
            arrivals = frozenset(name for name in FIELDS[-6:] if (self.rows[name][numbers] != NOTHING).any())
            runs.append(Run(kinds, head, numbers[0], len(numbers), arrivals))
        return runs
