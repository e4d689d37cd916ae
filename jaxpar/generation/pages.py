"""The pages of a cache, on the host: which of a data rank's pool each row has (PagedAttention, arXiv:2309.06180).

A row has pages for all tokens that it may get to before it takes a slot, so it never waits on the way. The rows of a
request share the pages that their prompt fills; the last one, which it fills in part, each row has as a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxpar.generation.layout import bucket, page_tokens, pool_bucket, power_of_two
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

    def pages_for(self, rows: Sequence[Row]) -> int:
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

    def free_slot_pages(self, slot: int) -> None:
        """Free the pages of the row in a slot."""
        free = self._free[slot // (len(self.table) // self.ranks)]
        request, rest = self._rows.pop(slot)
        free.extend(rest)
        prompt = self._prompts[request]
        prompt.rows -= 1
        if not prompt.rows:
            free.extend(self._prompts.pop(request).pages)


class Room(NamedTuple):
    """The slots and pages of each data rank."""

    slots: int
    capacity: int
    """Tokens that a row may get to."""
    page: int
    """Tokens of a page."""
    pages: int

    @property
    def longest(self) -> int:
        """Pages of a row of that capacity."""
        return -(-self.capacity // self.page)


def room_of(ranks: int, context: int, tensor: int, rows: int, tokens: int, requests: Sequence[Request] = ()) -> Room:
    """Slots for at least `rows` rows of up to `tokens` tokens, with the pages of `requests`, if these are all, or else
    those of every slot; on a mesh with `ranks` data ranks and `context` and `tensor` ranks."""
    # A tensor rank has an equal share of a data rank's rows.
    slots = -(-power_of_two(-(-rows // ranks)) // tensor) * tensor
    capacity = bucket(tokens, context * tensor)
    page = page_tokens(capacity, context)
    room = Room(slots, capacity, page, slots * -(-capacity // page))
    if not requests:
        return room
    pages = pool_bucket(-(-most_pages(requests, ranks * slots, page) // ranks))
    return room._replace(pages=max(min(room.pages, pages), room.longest))


def pages_of(request: Request, page: int) -> tuple[int, int]:
    """Pages of `page` tokens that the prompt of a request fills, and the others of each row."""
    return pages_of_row(len(request.prompt), request.tokens, page)


def pages_of_row(prompt: int, new: int, page: int) -> tuple[int, int]:
    """Pages that a prompt of `prompt` tokens fills, and those of its row beside them: its last token is not cached."""
    filled = prompt // page
    return filled, -(-(prompt + new - 1) // page) - filled


def most_pages(requests: Sequence[Request], rows: int, page: int) -> int:
    """Pages that `rows` rows of requests take at most, whichever they are."""
    sizes = [(*pages_of(request, page), request.answers) for request in requests]
    each = [pages for filled, others, rows in sizes for pages in [filled + others, *[others] * (rows - 1)]]
    return sum(sorted(each)[-rows:])


def largest_request(prompt: int, new: int, answers: int, page: int) -> Request:
    """The request that takes most pages of those with a prompt of at most `prompt` tokens: answers share less of a
    prompt that does not fill its last page."""

    def total(tokens: int) -> int:
        filled, others = pages_of_row(tokens, new, page)
        return filled + answers * others

    longest = max(range(max(1, prompt - page + 1), prompt + 1), key=total)
    return Request(range(longest), new, answers=answers)
