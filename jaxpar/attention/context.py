"""Context parallelism: strategies by which a rank's queries attend to keys and values of other ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax

from jaxpar.attention.allgather import allgather
from jaxpar.attention.backends import takes_cudnn
from jaxpar.attention.balance import pieces
from jaxpar.attention.choosing import choose
from jaxpar.attention.request import AttentionRequest
from jaxpar.attention.ring import ring, ring_steps
from jaxpar.attention.row import ContextLayout, Order
from jaxpar.attention.ulysses import exchanges, repeats, usp
from jaxpar.config.plan import Choice
from jaxpar.pages.units import GIB, size
from pallas_kernels.masks import Mask

GATHERED_AT_MOST = GIB
"""Bytes of gathered keys and values of one layer above which `auto` uses a ring instead."""


class Traffic(NamedTuple):
    """Bytes that one device sends for one layer and microbatch over the context axis."""

    forward: float
    backward: float


@dataclass(frozen=True)
class ContextStrategy:
    """A strategy for attention over a sequence that is split over the context axis."""

    name: str
    supports: Callable[[AttentionRequest], str | None]
    attend: Callable[..., jax.Array]
    """Called as `allgather` is, inside the step, where context is above 1."""
    traffic: Callable[[AttentionRequest, ContextLayout], Traffic]
    """Bytes that a device sends for a request in a layout, by the formula in the docstring of `attend`."""


def _supports_everything(request: AttentionRequest) -> None:
    """Gathering is right for every backend and mask, and a no-op where context is 1."""


def _supports_ring(request: AttentionRequest) -> str | None:
    if not request.permutes:
        return "it permutes, and in the branching ticks of a pipeline (parallel.pipe_ticks) permutes corrupt data"
    return None


def _supports_ulysses(request: AttentionRequest) -> str | None:
    return exchanges(request.heads, request.context)


def _supports_usp(request: AttentionRequest) -> str | None:
    if request.context == 1:
        return None  # no ranks to group: like the others it moves nothing
    if request.context % request.ulysses:
        return f"its groups of {request.ulysses} (parallel.ulysses) do not divide parallel.context ({request.context})"
    if request.ulysses in (1, request.context):
        other = "ring" if request.ulysses == 1 else "ulysses"
        return f"with groups of {request.ulysses} of {request.context} ranks (parallel.ulysses) it is {other}"
    return exchanges(request.heads, request.ulysses) or _supports_ring(request)


def _allgather_traffic(request: AttentionRequest, layout: ContextLayout) -> Traffic:
    forward = request.key_bytes * (request.context - 1)
    # Under full rematerialisation the backward recomputes output and log-sum-exp, from the gather that it does anyway.
    return Traffic(forward, 2 * forward)


def _exchange_and_ring_traffic(request: AttentionRequest, layout: ContextLayout) -> Traffic:
    """Traffic of every strategy but the gather: groups of one exchange nothing, and rings of one send nothing."""
    group = layout.ulysses
    key = request.key_bytes * repeats(request.kv_heads, group)
    exchanged = (request.query_bytes + key) * (group - 1) / group
    hops = ring_hops(request, layout)
    around = key * hops
    backward = around + around * 4 / request.itemsize
    if request.attends_again and hops:
        backward += key * (hops - 1)  # the first hop serves the recomputed forward and the backward
    # The backward starts from what was kept under a name, and what ranks exchanged has none.
    return Traffic(exchanged + around, 2 * exchanged + backward)


def ring_hops(request: AttentionRequest, layout: ContextLayout) -> int:
    """The number of hops of a block of keys and values."""
    ranks = request.context // layout.ulysses
    mask = Mask(request.causal, request.window, segmented=request.packed)
    return ring_steps(mask, layout.order, request.sequence // ranks, ranks) - 1


CONTEXT_STRATEGIES = (
    ContextStrategy("allgather", _supports_everything, allgather, _allgather_traffic),
    ContextStrategy("ring", _supports_ring, ring, _exchange_and_ring_traffic),
    ContextStrategy("ulysses", _supports_ulysses, usp, _exchange_and_ring_traffic),
    ContextStrategy("usp", _supports_usp, usp, _exchange_and_ring_traffic),
)


def choose_context_strategy(
    name: str, request: AttentionRequest, backend: str = "auto", key: str = "parallel.context_strategy"
) -> Choice:
    """The strategy called `name`, as the value of `key`, beside `attention.backend: backend`.

    Raises `UserError` where `choose` does.
    """
    preferred, reason = preference(request, backend)
    order = sorted(CONTEXT_STRATEGIES, key=lambda entry: entry.name != preferred)
    return choose(key, name, order, request, reason)


def preference(request: AttentionRequest, backend: str) -> tuple[str, str]:
    """The strategy that `auto` prefers, and why. Whole rows are preferred only where `backend` may be cuDNN."""
    if request.context == 1:
        return "allgather", "nothing to gather: context is 1"
    if request.window is not None and request.window <= request.sequence // request.context:
        return "ring", "within the window only neighbouring ranks need to send"
    if takes_cudnn(backend, replace(request, full_rows=True)) and exchanges(request.heads, request.context) is None:
        return "ulysses", "each rank attends over whole rows, which cuDNN can"
    gathered = request.key_bytes * request.context
    memory = f"{size(gathered)} of gathered keys and values in a layer"
    if gathered < GATHERED_AT_MOST:
        return "allgather", f"there are only {memory}"
    return "ring", f"it holds two blocks of keys and values instead of {memory}"


def context_layout(name: str, order: Order | Literal["auto"], request: AttentionRequest) -> ContextLayout:
    """The layout of the tokens of a row for the strategy called `name`; `order` may be `auto`."""
    if request.context == 1:
        return ContextLayout()  # one rank holds the row as it is
    group = {"ulysses": request.context, "usp": request.ulysses}.get(name, 1)
    if order != "auto":
        return ContextLayout(order, group)
    ranks = request.context // group
    windowed = request.window is not None and request.window <= request.sequence // ranks
    if ranks == 1 or windowed:
        return ContextLayout("contiguous", group)
    return ContextLayout("striped" if request.sequence % pieces("zigzag", ranks) else "zigzag", group)


def neighbours(context: int, heads: int, at_hand: int) -> int:
    """Ranks of a USP group where the configuration names none: the most that divide the heads among the `at_hand`
    neighbouring context ranks of a node, without being all context ranks."""
    return max(n for n in range(1, max(context, 2)) if context % n == heads % n == at_hand % n == 0)
