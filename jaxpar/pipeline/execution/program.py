"""From a schedule's ticks to the executor's program: microbatch, chunk and slots for each tick and rank.

Every rank runs the same program, so a row explains how to use what the program computes: an action that a rank does not
have in a tick is computed all the same, and its result is not counted and is written to an empty slot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.execution.slots import Lifetime, assign_slots, free_slot, slot_count
from jaxpar.pipeline.lockstep import branching_ticks
from jaxpar.pipeline.table import Schedule, Tick

BUFFERS = ("stash", "arrivals", "cotangents", "outputs", "kept", "weights", "gradients")
"""What ranks keep between ticks: a chunk's activations from F to B; inputs from their arrival to F; output gradients
from their arrival to B; the last chunk's output from F to B; what a split backward leaves for W; where chunks are
held, their gathered weights, and their gradients before they are scattered."""

SOURCES = ("before", "behind", "self")
"""The sender of a value that arrives after a tick: the previous rank, the next rank, or this rank itself."""

NOTHING = -1
"""In place of a slot: nothing arrives."""

EMBEDDING, ARRIVAL, STASHED = range(3)
"""Where the input of a forward comes from. `STASHED` repeats a forward into its own slot, when a rank has nothing to
do and no slot is free: it rewrites the same values."""

FIELDS = (
    "f_counts", "f_microbatch", "f_chunk", "f_source", "f_arrival", "f_slot", "f_last", "f_output",
    "b_counts", "b_microbatch", "b_chunk", "b_slot", "b_first", "b_last", "b_cotangent", "b_output", "b_kept",
    "w_counts", "w_chunk", "w_kept",
    "f_weights", "b_weights", "b_gradients",
    *(f"{what}_{source}" for what in "yg" for source in SOURCES),
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
    completes: bool = False
    """Whether gradients are complete after this tick, and are summed over ranks in it."""
    begins: bool = False
    """Whether this tick uses the layers first, and gathers them from where the optimizer has them."""


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


@dataclass(frozen=True)
class Window:
    """A chunk of every rank that is held in a slot."""

    chunk: int
    slot: int


@dataclass(frozen=True)
class PipelineProgram:
    """The rows of every tick, and how many slots each buffer has."""

    schedule: Schedule
    rows: dict[str, np.ndarray]
    """For each of `FIELDS` an int32 array [tick, rank]."""
    slots: dict[str, int]
    """Slots of each of `BUFFERS`."""
    loops: tuple[Loop, ...]
    loads: dict[int, list[Window]]
    """Where chunks are held: before a tick, the chunks to gather."""
    releases: dict[int, list[Window]]
    """Where chunks are held: before a tick (or after the last), the chunks whose gradients are complete."""
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
        ends = self.rows["y_before"][:, 0], self.rows["g_behind"][:, -1]
        return any((end != NOTHING).any() for end in ends) and self.schedule.ranks > 1

    @property
    def last_rank(self) -> int:
        """The rank of the last chunk, which computes the loss."""
        return self.schedule.rank_of[-1]


def make_program(
    schedule: Schedule,
    ticks: Sequence[Tick] | None = None,
    *,
    hold: bool = False,
    branching: bool = False,
    completes: bool = False,
    begins: bool = False,
) -> PipelineProgram:
    """The program of `schedule`, or of other ticks of its actions (a schedule of forwards alone is fine).

    With `hold`, the weights of a chunk are gathered once for all its forwards and once for all its backwards, and kept
    meanwhile: right for a schedule that finishes with a chunk before it begins the next. With `branching` each rank
    takes one action a tick, in its published order. With `completes` the last tick is a run of its own, in which
    gradients are complete: right for one rank, whose last tick has the backward of all layers. With `begins` the first
    one is, whose forward has all layers.
    """
    if ticks is None:
        ticks = branching_ticks(schedule.orders, schedule.chunks) if branching else schedule.ticks
    assert not completes or schedule.ranks == 1, "gradients of several ranks are complete in several ticks"
    assert not begins or schedule.chunks == 1, "several chunks are used first in several ticks"
    return _Maker(schedule, ticks, hold, branching, completes, begins).make()


class _Maker:
    def __init__(
        self, schedule: Schedule, ticks: Sequence[Tick], hold: bool, branching: bool, completes: bool, begins: bool
    ):
        self.schedule, self.ticks, self.hold, self.branching = schedule, ticks, hold, branching
        self.completes, self.begins = completes, begins
        self.loads: dict[int, list[Window]] = {}
        self.releases: dict[int, list[Window]] = {}
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
                if not self.branching:
                    self._idle(tick, rank, {action.kind for action in actions})
        if self.hold:
            self._hold()
        runs = self._runs()
        loops = tuple(Loop((run,), 1) for run in runs) if self.hold else tuple(fold(runs))
        return PipelineProgram(
            self.schedule, self.rows, dict(self.counts), loops, self.loads, self.releases, self.branching
        )

    def _hold(self) -> None:
        """Slots for the chunks in use, over all ranks: gathered and scattered by all of them at once."""
        windows: dict[tuple[str, int], Lifetime] = {}
        # A forward that is repeated into the stash must find the weights that it was run with.
        uses = {"f": (self.rows["f_counts"] == 1) | (self.rows["f_source"] == STASHED), "b": self.rows["b_counts"] == 1}
        for kind, used in uses.items():
            for chunk in range(self.schedule.virtual_stages):
                ticks = np.flatnonzero((used & (self.rows[f"{kind}_chunk"] == chunk)).any(axis=1))
                windows[kind, chunk] = Lifetime(int(ticks[0]), int(ticks[-1]))
        backwards = {name: life for name, life in windows.items() if name[0] == "b"}
        again = self._keep_for_backward(windows)
        for buffer, lives in (("weights", windows), ("gradients", backwards)):
            slots = assign_slots(lives)
            if buffer == "weights":
                slots |= {("b", chunk): slots["f", chunk] for chunk in again}
            self.counts[buffer] = slot_count(slots.values())
            for (kind, chunk), slot in slots.items():
                self.rows[f"{kind}_{buffer}"][uses[kind] & (self.rows[f"{kind}_chunk"] == chunk)] = slot
                if buffer == "weights":
                    if (kind, chunk) in lives:
                        self.loads.setdefault(lives[kind, chunk].first, []).append(Window(chunk, slot))
                else:
                    self.releases.setdefault(lives[kind, chunk].last + 1, []).append(Window(chunk, slot))

    @staticmethod
    def _keep_for_backward(windows: dict[tuple[str, int], Lifetime]) -> list[int]:
        """Joins both windows of a chunk whose backward begins before its forwards are over: it is gathered once."""
        again = [
            chunk for kind, chunk in windows if kind == "b" and windows["b", chunk].first <= windows["f", chunk].last
        ]
        for chunk in again:
            windows["f", chunk] = Lifetime(windows["f", chunk].first, windows.pop(("b", chunk)).last)
        return again

    def _note_lifetimes(self, action: Action) -> None:
        """The values that must be stored for `action`, from when they are made until `action` uses them."""
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
        """The row of a rank without an action in a tick in which others go forward or backward."""
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
        cuts = sorted({*self.loads, *self.releases})
        ends = "b" if self.rows["b_counts"].any() else "f"

        def signature(tick: int) -> tuple[frozenset[Kind], bool, int, bool, bool]:
            kinds = frozenset(action.kind for actions in self.ticks[tick] for action in actions)
            head = bool((self.rows[f"{ends}_last"][tick] & self.rows[f"{ends}_counts"][tick]).any())
            head |= self.branching and Kind.BACKWARD in kinds  # which costs no more: ranks branch around the loss too
            last = tick == len(self.ticks) - 1
            return kinds, head, bisect_right(cuts, tick), self.completes and last, self.begins and tick == 0

        runs = []
        for (kinds, head, _, completes, begins), group in groupby(range(len(self.ticks)), key=signature):
            numbers = list(group)
            arrivals = frozenset(name for name in FIELDS[-6:] if (self.rows[name][numbers] != NOTHING).any())
            runs.append(Run(kinds, head, numbers[0], len(numbers), arrivals, completes, begins))
        return runs


MOST_RUNS = 6
"""Runs that a repeated pattern is looked for in; as many as V-Half has on two ranks that branch."""


def fold(runs: Sequence[Run]) -> Iterator[Loop]:
    """Loops that stand for `runs`: a pattern of runs that repeats is written once.

    Interleaved schedules alternate between ticks with and without the loss, as often as there are microbatches for it.
    """
    key = lambda run: (run.kinds, run.head, run.ticks, run.completes, run.begins)
    at = 0
    while at < len(runs):
        best = 1, 1
        for length in range(1, MOST_RUNS + 1):
            pattern = [key(run) for run in runs[at : at + length]]
            repeats = 1
            while [key(run) for run in runs[at + repeats * length : at + (repeats + 1) * length]] == pattern:
                repeats += 1
            if repeats > 1 and repeats * length > best[0] * best[1]:
                best = length, repeats
        length, repeats = best
        folded = [runs[at + place : at + length * repeats : length] for place in range(length)]
        together = [replace(same[0], arrivals=frozenset().union(*(run.arrivals for run in same))) for same in folded]
        yield Loop(tuple(together), repeats)
        at += length * repeats
