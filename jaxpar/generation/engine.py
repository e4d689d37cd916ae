"""Continuous batching: a row that ends frees its slot at once, and the next prompt is read into it.

The devices are one token ahead of the host: a row that a token ends has one more drawn, which is dropped. A row that
its limit ends has not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any

import jax
import numpy as np

from jaxpar.generation.functions import Rows
from jaxpar.generation.layout import page_tokens
from jaxpar.generation.pages import Pages
from jaxpar.generation.prefill import Begun, Flight, Prefill, data_ranks, put_rows
from jaxpar.generation.programs import Programs
from jaxpar.generation.requests import Request, Row, Speed
from jaxpar.mesh.build import to_numpy
from jaxpar.mesh.parameters import Weights


class Engine:
    """Continues requests in slots, on every process of a job alike.

    A data rank has an equal share of the slots, and the rows of a request are on one rank.

    Args:
        programs: of the model on its mesh.
        weights: the weights of the moment, which each step asks for.
        slots: rows that are continued together, a multiple of the data and tensor ranks.
        capacity: tokens that a row may get to, its prompt included.
        pages: of the cache of each data rank, at least those of one row of that capacity.
        prefill: programs and weights of the mesh that reads prompts; by default that of the slots.
        records: also keep what blocks record of the tokens (`jaxpar.layers.block.Block.records`).
    """

    def __init__(
        self,
        programs: Programs,
        weights: Callable[[], Weights],
        slots: int,
        capacity: int,
        pages: int,
        *,
        prefill: tuple[Programs, Callable[[], Weights]] | None = None,
        records: bool = False,
    ) -> None:
        self._programs, self._weights, self._capacity, self._records = programs, weights, capacity, records
        self._prefill = Prefill(*(prefill or (programs, weights)), programs.mesh, capacity, records)
        axes = dict(programs.mesh.shape)
        self._ranks = data_ranks(programs.mesh)
        self._slots: list[Row | None] = [None] * slots
        page = page_tokens(capacity, axes["context"])
        table = np.zeros((slots, -(-capacity // page)), np.int32)
        assert pages >= table.shape[1], "a row has room"
        self._pages = Pages(self._ranks, pages, page, table)
        self._active: tuple[tuple[bool, ...], jax.Array] | None = None
        self._state: Rows | None = None
        self._requests: deque[Request] = deque()
        self._begun: list[Begun] = []
        self._flights: deque[Flight] = deque()
        self._clock = 0.0
        self.speed = Speed()

    def add(self, request: Request) -> None:
        """Continue a request, whose prompt and new tokens fit the capacity, once slots are free."""
        assert len(request.prompt) + request.tokens <= self._capacity, "the caller checks lengths"
        self._requests.append(request)

    def cancel(self, request: Request) -> None:
        """Drop a request; its slots are free at once."""
        if request in self._requests:
            self._requests.remove(request)
        for row in request.rows:
            row.done = True
        self._free()

    @property
    def busy(self) -> bool:
        """Whether any row is to be continued or read."""
        return bool(self._requests or self._begun or self._flights or any(self._slots))

    @property
    def slots(self) -> int:
        """Rows that are continued together."""
        return len(self._slots)

    @property
    def cached_tokens(self) -> int:
        """Tokens that the pages of rows in slots have room for; rows of a request share those of its prompt."""
        return self._pages.taken * self._pages.tokens

    @property
    def waiting(self) -> int:
        """Requests that no slot has been free for."""
        return len(self._requests)

    def step(self) -> list[Row]:
        """Begin requests where slots are free, draw a token of each row, and read what was drawn before.

        Returns the rows that are done.
        """
        if not self._flights:
            self._clock = time.perf_counter()
        done = self._arrived()
        self._begin()
        running = any(self._slots)
        if running:
            self._decode()
        while len(self._flights) > running:
            done += self._read(self._flights.popleft())
        self._free()
        return done

    def _free(self) -> None:
        """Free the slots of rows that need no more tokens, and their pages."""
        for slot, row in enumerate(self._slots):
            if row is not None and row.full:
                self._slots[slot] = None
                self._pages.free_slot_pages(slot)

    def _open(self, rank: int) -> list[int]:
        """The free slots of a data rank, by their index on it."""
        share = len(self._slots) // self._ranks
        return [slot for slot, row in enumerate(self._slots[rank * share : (rank + 1) * share]) if row is None]

    def _chosen(self) -> list[list[Request]]:
        """The requests to begin on each data rank: those that are first, on the rank with most free slots of those
        that have pages for them."""
        waiting = [[one.row for begun in self._begun for one in begun.waiting[rank]] for rank in range(self._ranks)]
        room = [len(self._open(rank)) - len(rows) for rank, rows in enumerate(waiting)]
        free = [self._pages.free(rank) - self._pages.pages_for(rows) for rank, rows in enumerate(waiting)]
        chosen: list[list[Request]] = [[] for _ in room]
        answers = self._requests[0].answers if self._requests else 0
        while self._requests and self._requests[0].answers == answers:
            needed = self._pages.needed(self._requests[0])
            ranks = [rank for rank in range(self._ranks) if room[rank] > 0 and free[rank] >= needed]
            if not ranks:
                break
            rank = max(ranks, key=room.__getitem__)
            free[rank] -= self._pages.needed(self._requests[0], min(answers, room[rank]))
            chosen[rank].append(self._requests.popleft())
            room[rank] -= answers
        return chosen

    def _begin(self) -> None:
        """Begin requests where slots are free: in batches of a power of four, so that few programs are compiled."""
        self._insert()
        chosen = self._chosen()
        while any(chosen):
            share = 4 ** int(log2(max(map(len, chosen))) // 2)
            begun = self._prefill([requests[:share] for requests in chosen], share, self.speed)
            if not self._prefill.apart and begun.first is not None:
                self._flights.append(begun.first)
                begun = begun._replace(first=None)
            self._begun.append(begun)
            chosen = [requests[share:] for requests in chosen]
        self._insert()

    def _arrived(self) -> list[Row]:
        """Read the first tokens of prompts whose caches were handed over; the rows that they end. Where no slot has a
        row, it waits for them."""
        done: list[Row] = []
        for index, begun in enumerate(self._begun):
            if begun.first is not None and (begun.ready or not any(self._slots)):
                done += self._read(begun.first)
                self._begun[index] = begun._replace(first=None)
        return done

    def _insert(self) -> None:
        """Give free slots and pages to rows that wait for them, in order."""
        share, stuck = len(self._slots) // self._ranks, set[int]()
        for begun in (one for one in self._begun if one.first is None):
            copies: list[list[tuple[int, int, int]]] = [[] for _ in begun.waiting]
            filled: list[list[tuple[int, int, int]]] = [[] for _ in begun.waiting]
            for rank, waiting in enumerate(begun.waiting):
                slots = deque(self._open(rank))
                while waiting and rank not in stuck:
                    prompt, answer, row = waiting[0]
                    if not row.full:
                        if not slots or self._pages.needed(row.request) > self._pages.free(rank):
                            stuck.add(rank)
                            break
                        slot = slots.popleft()
                        copies[rank].append((slot, prompt, answer))
                        pages = self._pages.take(rank * share + slot, row.request)
                        filled[rank] += [(prompt, *page) for page in pages]
                        self._slots[rank * share + slot] = row
                    waiting.popleft()
            if any(copies):
                self._copy(begun, copies, filled)
        self._begun = [begun for begun in self._begun if begun.first is not None or any(begun.waiting)]

    def _copy(
        self, begun: Begun, copies: list[list[tuple[int, int, int]]], filled: list[list[tuple[int, int, int]]]
    ) -> None:
        prefix, slots, pool = begun.prefix, len(self._slots), self._pages.each * self._ranks
        if self._state is None:
            self._state = self._programs.idle(prefix, slots, self._capacity, pool)
        prompts, answers = len(prefix.lengths), len(prefix.token) // len(prefix.lengths)
        program = self._programs.insert(prompts, begun.length, slots, self._capacity, pool, answers=answers)
        share = slots // self._ranks
        pages = share * -(-begun.length // self._pages.tokens)
        sizes = np.array([[len(one), len(other)] for one, other in zip(copies, filled, strict=True)], np.int32)
        self._state = program(
            self._state._replace(pages=self._put(self._pages.table)), prefix,
            self._put(_padded(copies, share)), self._put(_padded(filled, pages)), self._put(sizes),
        )  # fmt: skip

    def _decode(self) -> None:
        """Draw a token of each row in a slot."""
        active = tuple(row is not None for row in self._slots)
        if self._active is None or self._active[0] != active:
            self._active = active, self._put(np.array(active))
        program = self._programs.decode(
            len(self._slots), self._capacity, self._pages.each * self._ranks, records=self._records
        )
        self._state, (drawn, records) = program(self._weights(), self._state, self._active[1])
        rows = {slot: row for slot, row in enumerate(self._slots) if row is not None}
        self._flights.append(Flight(drawn, records, rows, 0))
        for row in rows.values():
            row.issued += 1
        self.speed.steps += len(self._slots)
        self._free()

    def _read(self, flight: Flight) -> list[Row]:
        """Wait for tokens; the rows that they end."""
        arrays: tuple[Any, Mapping[str, Any]] = flight.drawn, flight.records
        drawn, records = to_numpy(arrays)
        now, speed = time.perf_counter(), self.speed
        if flight.answers:
            speed.prompt_seconds += now - self._clock
        else:
            speed.new_seconds += now - self._clock
        self._clock, done = now, list[Row]()
        for at, row in flight.rows.items():
            if row.done:
                continue
            if records:
                prompt = at // flight.answers if flight.answers else at
                read = len(row.request.prompt) if flight.answers else 1
                row.pieces.append({name: values[prompt, :read] for name, values in records.items()})
            row.take(int(drawn.token[at]), float(drawn.log_probability[at]))
            speed.new_tokens += 1
            speed.used += not flight.answers
            if row.done:
                done.append(row)
        return done

    def _put(self, array: np.ndarray) -> jax.Array:
        return put_rows(self._programs.mesh, array)


def _padded(triples: Sequence[Sequence[tuple[int, int, int]]], size: int) -> np.ndarray:
    """[ranks x size, 3]: those of each rank, and zeros."""
    every = np.zeros((len(triples), size, 3), np.int32)
    for rank, some in enumerate(triples):
        every[rank, : len(some)] = np.array(some, np.int32).reshape(-1, 3)
    return every.reshape(-1, 3)
