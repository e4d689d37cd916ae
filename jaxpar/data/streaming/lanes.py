"""A lane: an endless sequence of blocks of its own, cut into rows.

In each epoch the blocks come in an order of the seed and the epoch's number, and block `i` of it is one of lane
`i % lanes`. A lane lays the documents of its blocks end to end, and its row `n` begins with token `n * sequence_length`
of that. Where a row begins is known only when the blocks before it are tokenized: a lane remembers where the first row
of each block begins, and a checkpoint has the position of its next row.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt

from jaxpar.data.prepare.input.files import Input
from jaxpar.data.randomness import KeyedPermutation
from jaxpar.data.streaming.block import BlockTask, BlockTokens
from jaxpar.data.streaming.files import Blocks

_BLOCKS, _DOCUMENTS = 0, 1
_AHEAD = 2
"""Blocks of a lane that are tokenized before they are needed."""
_REMEMBERED = 4096
"""Rows before the last one whose positions are remembered: more than batches are prepared ahead."""


class Position(NamedTuple):
    """Start of a row of a lane."""

    epoch: int
    index: int
    """Number of a block among those of the lane in the epoch."""
    offset: int
    """Tokens from the beginning of the block; may be beyond its end."""

    @property
    def turn(self) -> tuple[int, int]:
        """The epoch and the block."""
        return self.epoch, self.index


@dataclass(frozen=True)
class BlockOrder:
    """The order in which lanes read blocks."""

    files: Sequence[Input]
    lanes: int
    seed: int
    validation_fraction: float

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks of all files."""
        return Blocks(self.files, self.lanes)

    def task(self, lane: int, epoch: int, index: int) -> BlockTask:
        """A block of a lane."""
        block = KeyedPermutation(len(self.blocks), self.seed, epoch, _BLOCKS).permute(index * self.lanes + lane)
        return BlockTask(self.blocks[block], self.validation_fraction, order=(self.seed, epoch, _DOCUMENTS, block))

    def after(self, lane: int, epoch: int, index: int) -> tuple[int, int]:
        """The epoch and number of the next block."""
        return (epoch, index + 1) if index + 1 < self.blocks_of(lane) else (epoch + 1, 0)

    def blocks_of(self, lane: int) -> int:
        """Blocks of a lane in an epoch."""
        return len(range(lane, len(self.blocks), self.lanes))


class Lane:
    """The rows of a lane; see the module's text.

    Args:
        lane: its number.
        order: of the blocks.
        sequence_length: tokens of a row.
        submit: has a block tokenized.
        row: the first row that is known.
        position: where that begins.
    """

    def __init__(
        self,
        lane: int,
        order: BlockOrder,
        sequence_length: int,
        submit: Callable[[BlockTask], Future[BlockTokens]],
        row: int,
        position: Position,
    ) -> None:
        self._lane, self._order, self._length, self._submit = lane, order, sequence_length, submit
        self._rows, self._positions = [row], [position]
        """Rows whose position is known: the first one, and the first that begins in each block since."""
        self._blocks: dict[tuple[int, int], Future[BlockTokens]] = {}
        self._recent: deque[tuple[int, int]] = deque(maxlen=4)
        self._lock = threading.Lock()

    def position(self, row: int) -> Position:
        """Start of a row, which may be the one after the last."""
        with self._lock:
            return self._known(row)

    def ask(self, row: int) -> None:
        """Have the block in which a row begins tokenized, if it is known."""
        with self._lock:
            self._block(self._known(row).turn)

    def row(self, row: int) -> tuple[UInt[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """The tokens of a row and the token after it, and a number of its document for each.

        Several threads may ask for rows, in any order; one that was passed long ago is made again.
        """
        with self._lock:
            epoch, index, start = self._known(row)
        turn = epoch, index
        while start >= len(block := self._tokens(turn)):
            start -= len(block)
            turn = self._order.after(self._lane, *turn)
        with self._lock:
            self._remember(row - start // self._length, Position(*turn, start % self._length))
            self._recent.append(turn)
        tokens, documents, missing, before = [], [], self._length + 1, 0
        while missing:
            block = self._tokens(turn)
            places = np.arange(start, min(start + missing, len(block)))
            tokens.append(block.tokens[start : start + missing])
            documents.append(before + np.searchsorted(block.stops, places, side="right"))
            missing, before, start = missing - len(places), before + len(block.stops), 0
            turn = self._order.after(self._lane, *turn)
        with self._lock:
            for one in [one for one in self._blocks if one < min(self._recent)]:
                del self._blocks[one]
        return np.concatenate(tokens), np.concatenate(documents)

    def epochs(self, row: int) -> float:
        """Epochs of the lane's blocks before a row begins."""
        with self._lock:
            position = self._known(row)
            block = self._blocks.get(position.turn)
            read = 0.0
            if block is not None and block.done() and len(block.result()):
                read = min(position.offset / len(block.result()), 1.0)
            return position.epoch + (position.index + read) / self._order.blocks_of(self._lane)

    def _known(self, row: int) -> Position:
        assert row >= self._rows[0], f"row {row} of lane {self._lane} is before {self._rows[0]}, the first one known"
        mark = bisect_right(self._rows, row) - 1
        epoch, index, offset = self._positions[mark]
        return Position(epoch, index, offset + (row - self._rows[mark]) * self._length)

    def _remember(self, row: int, position: Position) -> None:
        if row > self._rows[-1]:
            self._rows.append(row)
            self._positions.append(position)
            passed = max(bisect_right(self._rows, row - _REMEMBERED) - 1, 0)
            del self._rows[1:passed], self._positions[1:passed]

    def _tokens(self, turn: tuple[int, int]) -> BlockTokens:
        """The tokens of a block, once they are there; the next blocks are begun."""
        with self._lock:
            future, following = self._block(turn), turn
            for _ in range(_AHEAD):
                following = self._order.after(self._lane, *following)
                self._block(following)
        return future.result()  # without the lock, which a save takes

    def _block(self, turn: tuple[int, int]) -> Future[BlockTokens]:
        if turn not in self._blocks:
            self._blocks[turn] = self._submit(self._order.task(self._lane, *turn))
        return self._blocks[turn]
