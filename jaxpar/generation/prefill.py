"""Prefill of prompts: on the mesh of the slots, or on a separate one, whose caches are handed over (Splitwise,
arXiv:2311.18677)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import gcd, prod
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxpar.generation.functions import Prefix
from jaxpar.generation.layout import BY_ROW, prompt_bucket
from jaxpar.generation.programs import Programs
from jaxpar.generation.requests import Request, Row, Speed
from jaxpar.generation.sampling import DTYPES, Drawn, Draws
from jaxpar.layout.step_layout import shardings
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.mesh.parameters import Weights
from jaxpar.runtime.batch import FORWARD, BatchLayout, single_document_fields


class Flight(NamedTuple):
    """Tokens that the devices draw."""

    drawn: Drawn
    records: Mapping[str, jax.Array]
    rows: Mapping[int, Row]
    """The rows, by the index of the drawn token."""
    answers: int
    """Rows to each prompt; 0 for tokens that are no first ones."""


class Waiting(NamedTuple):
    """A row that was begun and waits for a slot: its prompt and answer, by their indices on a data rank."""

    prompt: int
    answer: int
    row: Row


class Begun(NamedTuple):
    """Prompts that are read."""

    prefix: Prefix
    """On the mesh of the slots."""
    length: int
    """To which they are padded."""
    waiting: Sequence[deque[Waiting]]
    """The prompts of each data rank of the slots."""
    first: Flight | None
    """The first tokens, which are read before a row takes a slot; None where they are, or are read in turn."""

    @property
    def ready(self) -> bool:
        """Whether the devices of the slots have the caches, and nothing of them is waited for."""
        return all(leaf.is_ready() for leaf in jax.tree.leaves((self.prefix, self.first and self.first.drawn)))


class Prefill:
    """Reads prompts for slots.

    Args:
        programs: of the mesh that reads them.
        weights: the weights of the moment on it.
        slots: the mesh of the slots: the same one, or one of other devices that differs in its data ranks alone.
        capacity: tokens that a row may get to.
        records: see `Engine`.
    """

    def __init__(
        self, programs: Programs, weights: Callable[[], Weights], slots: Mesh, capacity: int, records: bool
    ) -> None:
        self._programs, self._weights, self._slots = programs, weights, slots
        self._capacity, self._records = capacity, records
        self.apart = programs.mesh != slots
        axes = dict(programs.mesh.shape)
        self._ranks, self._part = data_ranks(programs.mesh), axes["context"] * axes["tensor"]

    def __call__(self, chosen: Sequence[Sequence[Request]], share: int, speed: Speed) -> Begun:
        """Read the prompts of requests, at most `share` on each data rank of the slots, and draw the first token of
        each row."""
        every = [request for requests in chosen for request in requests]
        answers = every[0].answers
        length = prompt_bucket(max(len(request.prompt) for request in every), self._part)
        # The data ranks that read prompts have equal shares of them too.
        least = self._ranks // gcd(self._ranks, len(chosen))
        share = -(-share // least) * least
        tokens = np.zeros((len(chosen) * share, length), np.int32)
        lengths = np.ones(len(tokens), np.int32)
        draws = [Request((), 1).draws()[0]] * (len(tokens) * answers)
        rows: dict[int, Row] = {}
        waiting = [deque[Waiting]() for _ in chosen]
        for rank, requests in enumerate(chosen):
            for index, request in enumerate(requests):
                at = rank * share + index
                tokens[at, : len(request.prompt)], lengths[at] = request.prompt, len(request.prompt)
                draws[at * answers : (at + 1) * answers] = request.draws()
                rows |= {at * answers + row.index: row for row in request.rows}
                waiting[rank].extend(Waiting(index, row.index, row) for row in request.rows)
        mesh, programs = self._programs.mesh, self._programs
        columns = [put_rows(mesh, np.array(*one)) for one in zip(zip(*draws, strict=True), DTYPES, strict=True)]
        program = programs.prefill(*tokens.shape, self._capacity, answers=answers, records=self._records)
        batch = BatchLayout(FORWARD, tokens.shape).place(mesh, single_document_fields(tokens))
        prefix, (drawn, records) = program(self._weights(), batch, put_rows(mesh, lengths), Draws(*columns))
        for row in rows.values():
            row.issued = 1
        speed.prompt_tokens += sum(len(request.prompt) for request in every)
        first = Flight(drawn, records, rows, answers)
        return Begun(self._handed(prefix, speed) if self.apart else prefix, length, waiting, first)

    def _handed(self, prefix: Prefix, speed: Speed) -> Prefix:
        """The caches of prompts on the mesh of the slots."""
        target = shardings(self._slots, self._programs.prefix_layout(self._capacity))
        moved = jax.tree.map(jax.device_put, prefix, target)
        for leaf in jax.tree.leaves(moved):
            speed.handed_bytes += leaf.dtype.itemsize * prod(leaf.sharding.shard_shape(leaf.shape)) * self._slots.size
        return moved


def data_ranks(mesh: Mesh) -> int:
    """The parts into which rows are split."""
    return prod(mesh.shape[axis] for axis in DATA_AXES)


def put_rows(mesh: Mesh, array: np.ndarray) -> jax.Array:
    """A copy of an array of rows, split over the data ranks: on a CPU, JAX reads an aligned array where it is, and the
    host changes the table of pages while steps run."""
    where = shardings(mesh, PartitionSpec(*BY_ROW))
    return jax.make_array_from_callback(array.shape, where, lambda index: array[index].copy())
