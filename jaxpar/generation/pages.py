"""The pages of a cache, on the host: which of a data rank's pool each row has (PagedAttention, arXiv:2309.06180).

A row has pages for all tokens that it may get to before it takes a slot, so it never waits on the way. The rows of a
request share the pages that their prompt fills; the last one, which it fills in part, each row has as a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxpar.generation.requests import Request, Row


@dataclass
class _Prompt:
    """The pages that a request's prompt fills, and how many rows in slots share them."""

    pages: list[int]
    rows: int = 0


@dataclass
class Pages:
    """The pages of slots, by data rank.

    Args:
        ranks: data ranks.
        each: pages of the pool of each.
        tokens: of a page.
        table: [slot, page], the pages of each slot in order; slots are by data rank.
    """

    ranks: int
    each: int
    tokens: int
    table: np.ndarray
    _free: list[list[int]] = field(init=False)
    _rows: dict[int, tuple[Request, list[int]]] = field(default_factory=dict, init=False)
    _prompts: dict[Request, _Prompt] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._free = [list(reversed(range(self.each))) for _ in range(self.ranks)]

    def free(self, rank: int) -> int:
        """Free pages of a data rank."""
        return len(self._free[rank])

    @property
    def taken(self) -> int:
        """Pages that rows have, of all data ranks."""
        return self.ranks * self.each - sum(map(len, self._free))

    def needed(self, request: Request, rows: int = 1) -> int:
        """Pages that more rows of a request would take."""
        filled, others = pages_of(request, self.tokens)
        return rows * others + (filled if rows and request not in self._prompts else 0)

    def needed_by(self, rows: Sequence[Row]) -> int:
        """Pages that rows without slots would take."""
        requests = Counter(row.request for row in rows if not row.full)
        return sum(self.needed(request, rows) for request, rows in requests.items())

    def take(self, slot: int, request: Request) -> list[tuple[int, int]]:
        """Give pages to a row in a slot; (index, page) of each that is to be filled from the prompt."""
        free = self._free[slot // (len(self.table) // self.ranks)]
        filled, others = pages_of(request, self.tokens)
        new, prompt = range(0), self._prompts.get(request)
        if prompt is None:
            new = range(filled)
            prompt = self._prompts[request] = _Prompt([free.pop() for _ in new])
        prompt.rows += 1
        rest = [free.pop() for _ in range(others)]
        pages = prompt.pages + rest
        self.table[slot, : len(pages)] = pages
        self._rows[slot] = request, rest
        partial = range(filled, -(-len(request.prompt) // self.tokens))
        return [(index, pages[index]) for index in (*new, *partial)]

    def give_back(self, slot: int) -> None:
        """Free the pages of the row in a slot."""
        free = self._free[slot // (len(self.table) // self.ranks)]
        request, rest = self._rows.pop(slot)
        free.extend(rest)
        prompt = self._prompts[request]
        prompt.rows -= 1
        if not prompt.rows:
            free.extend(self._prompts.pop(request).pages)


def pages_of(request: Request, tokens: int) -> tuple[int, int]:
    """Pages of `tokens` tokens that the prompt of a request fills, and the others of each row: its last token is not
    cached."""
    filled = len(request.prompt) // tokens
    return filled, -(-(len(request.prompt) + request.tokens - 1) // tokens) - filled


def most_pages(requests: Sequence[Request], rows: int, tokens: int) -> int:
    """Pages that `rows` rows of requests take at most, whichever they are."""
    sizes = [(*pages_of(request, tokens), request.answers) for request in requests]
    each = [pages for filled, others, rows in sizes for pages in [filled + others, *[others] * (rows - 1)]]
    return sum(sorted(each)[-rows:])
