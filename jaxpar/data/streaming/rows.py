"""Rows of text that is tokenized while it is read: example `e` is row `e // lanes` of lane `e % lanes`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.data.packing import Row, assemble
from jaxpar.data.randomness import KeyedPermutation
from jaxpar.data.stream import TokenStream
from jaxpar.data.streaming.block import BlockTask
from jaxpar.data.streaming.files import Blocks
from jaxpar.data.streaming.lanes import BlockOrder, Lane, Position
from jaxpar.data.streaming.workers import Workers

ORDER = 1
"""Version of the order of the rows."""
SAMPLE_TOKENS = 2**20
"""Least number of tokens of the sample that `StreamRows.stream` is, where there are as many."""


class StreamRows:
    """Rows of all documents of some blocks, again and again.

    Args:
        order: of the blocks.
        workers: tokenize them.
        sequence_length: tokens of a row.
        packed: keep the documents of a row apart (see `assemble`).
        name: name of the source.
        files: identity of the files, the tokenizer and what else decides which documents there are.
        positions: where the rows of `example` and those after it begin, one of each lane; None for the beginning.
        example: the first example.
    """

    shuffle = None

    def __init__(
        self,
        order: BlockOrder,
        workers: Workers,
        *,
        sequence_length: int,
        packed: bool,
        name: str,
        files: str,
        positions: Sequence[Position] | None = None,
        example: int = 0,
    ) -> None:
        self.sequence_length, self.packed, self.name = sequence_length, packed, name
        self.order, self.workers, self._files = order, workers, files
        self._first, self._example = positions or [Position(0, 0, 0)] * order.lanes, example
        self._lanes: dict[int, Lane] = {}
        self._lock = threading.Lock()

    def row(self, example: int) -> Row:
        """The row of an example."""
        tokens, documents = self._lane(example).row(example // self.order.lanes)
        return assemble(tokens, documents, sequence_length=self.sequence_length, packed=self.packed)

    def ask(self, examples: Sequence[int]) -> None:
        """Begin to tokenize for some examples, which are asked for next."""
        for example in examples:
            self._lane(example).ask(example // self.order.lanes)

    def shuffled(self, version: int) -> StreamRows:
        """These rows, which have one order."""
        return self

    def epochs(self, examples: int) -> dict[str, float]:
        """Epochs of the lanes that this process reads."""
        lanes = self._lanes or {lane: self._made(lane) for lane in range(self.order.lanes)}
        done = [one.epochs(self._rows_before(lane, examples)) for lane, one in lanes.items()]
        return {self.name: float(np.mean(done))}

    def positions(self, example: int) -> dict[str, Any]:
        """The facts that continue these rows at an example: of the lanes that this process reads or none has read."""
        lanes: dict[str, Position] = {}
        for lane in range(self.order.lanes):
            row = self._rows_before(lane, example)
            if lane in self._lanes:
                lanes[str(lane)] = self._lanes[lane].position(row)
            elif row == self._rows_before(lane, self._example):
                lanes[str(lane)] = self._first[lane]
        return {"order": ORDER, "files": self._files, "example": example, "lanes": lanes}

    def continued(self, saved: Mapping[str, Any]) -> StreamRows:
        """These rows, continued from the `positions` of all processes.

        Raises:
            UserError: they are of other files, or of a later release.
        """
        if saved["order"] != ORDER:
            raise UserError(
                f"the checkpoint has its data in the order of version {saved['order']} of data.source: stream, and "
                f"this release has {ORDER}; continue with the release that saved it"
            )
        if saved["files"] != self._files:
            raise UserError(
                f"data.path: the files of {self.name}, their sizes, or the tokenizer are not those that the run began "
                "with, so it cannot continue where it was; expected the same ones, or a new run with run.init_from"
            )
        lanes = {int(lane): Position(*position) for lane, position in saved["lanes"].items()}
        return StreamRows(
            replace(self.order, lanes=len(lanes)),
            self.workers,
            sequence_length=self.sequence_length,
            packed=self.packed,
            name=self.name,
            files=self._files,
            positions=[lanes[lane] for lane in range(len(lanes))],
            example=saved["example"],
        )

    @cached_property
    def _sample(self) -> TokenStream:
        sample = first_documents(
            self.workers, self.order.blocks, SAMPLE_TOKENS, validation_fraction=self.order.validation_fraction
        )
        assert sample is not None, "there is a document"
        return sample

    @property
    def stream(self) -> TokenStream:
        """A sample of the documents."""
        return self._sample

    def _lane(self, example: int) -> Lane:
        lane = example % self.order.lanes
        with self._lock:
            if lane not in self._lanes:
                self._lanes[lane] = self._made(lane)
            return self._lanes[lane]

    def _made(self, lane: int) -> Lane:
        row = self._rows_before(lane, self._example)
        return Lane(lane, self.order, self.sequence_length, self.workers.submit, row, self._first[lane])

    def _rows_before(self, lane: int, example: int) -> int:
        """Rows of a lane in the examples below `example`."""
        return len(range(lane, example, self.order.lanes))


def first_documents(
    workers: Workers, blocks: Blocks, tokens: int, *, validation_fraction: float, validation: bool = False
) -> TokenStream | None:
    """The documents of blocks with this number of tokens together, or of all; None if there are none.

    The blocks are in a random order, so that a few of them are of all files.
    """
    order = KeyedPermutation(len(blocks), 0)
    left = (BlockTask(blocks[order.permute(index)], validation_fraction, validation) for index in range(len(blocks)))
    futures = deque(workers.submit(task) for task in islice(left, 2 * workers.count))
    parts, starts, size = [], [], 0
    while futures and size < tokens:
        part = futures.popleft().result()
        futures.extend(workers.submit(task) for task in islice(left, 1))
        if len(part):
            starts.append(size + np.append(0, part.stops[:-1]))
            parts.append(part.tokens)
            size += len(part)
    for future in futures:
        future.cancel()
    return TokenStream(np.concatenate(parts), np.concatenate(starts)) if parts else None
