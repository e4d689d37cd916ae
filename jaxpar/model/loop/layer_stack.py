"""The stack of one kind of layers in a walk: what its rows run and keep, and rows that hold no layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PyTree

from jaxpar.memory.buffers import stacked
from jaxpar.memory.streaming import is_on_host
from jaxpar.mesh.layer_order import PADDING, Chunk, Index, Slot, StackOrder
from jaxpar.mesh.parameters import Arrays
from jaxpar.mesh.tracing import permutes
from jaxpar.model.loop.layer_program import LayerProgram, Policy
from jaxpar.model.loop.walk import Site, Tie
from jaxpar.runtime.passes import Accumulator, Stack, WeightStore


class Keep(NamedTuple):
    """Settings of neighbouring layers of a kind in a chunk: what they keep between forward and backward."""

    layers: int
    """Number of these layers."""
    policy: Policy | None = None
    """Remat policy inside a layer, as for `jax.checkpoint`; None keeps every intermediate of autodiff."""
    offload_inputs: bool = False
    """Whether their inputs are offloaded to host memory."""
    variant: Hashable = None
    """The one of the kind's programs that they run; None for the plain one."""


def saved_by_kind(
    slots: Sequence[Slot], keeps: Iterable[Keep], variants: Mapping[str, Sequence[Hashable]]
) -> dict[str, tuple[Keep, ...]]:
    """Saved values of the rows of each kind, from those of a chunk's slots; equal neighbours in a stack are joined.

    `variants` has those of each kind's rows.
    """
    each = (keep._replace(layers=1) for keep in keeps for _ in range(keep.layers))
    rows: dict[str, list[Keep]] = {}
    for slot, keep in zip(slots, each, strict=True):
        rows.setdefault(slot.kind, []).append(keep._replace(variant=variants[slot.kind][slot.row]))
    return {
        kind: tuple(keep._replace(layers=len(list(same))) for keep, same in groupby(kind_rows))
        for kind, kind_rows in rows.items()
    }


class Step(NamedTuple):
    """The work of a walk in a row."""

    run: Callable[[Arrays, PyTree, jax.Array, PyTree], PyTree]
    """`(weights, what was fetched besides, row, carry) -> carry`."""
    fetch: Callable[[jax.Array], PyTree] = lambda row: None
    """`row -> activations in host memory for it`, moved to the device."""
    loads: bool = True
    """Whether it takes weights."""


@dataclass(frozen=True, eq=False)
class LayerStack:
    """Layers of one kind, [row, ...], on this rank."""

    name: str
    """The name of the kind."""
    programs: Mapping[Hashable, LayerProgram]
    """The programs of layers, by `Keep.variant`: layers of one kind may have others, over the same weights."""
    keeps: tuple[Keep, ...]
    """The settings of the rows of a chunk, in row order."""
    order: StackOrder
    store: WeightStore
    blocks: tuple[tuple[str, str], ...] = ()
    """The name of each block among a layer's weights, and that of its last matrix."""

    def __post_init__(self) -> None:
        layers, rows = len(self.keep_by_row), self.order.rows_per_chunk
        assert layers == rows, f"what they keep is given for {layers} layers, and a chunk has {rows}"

    @property
    def program(self) -> LayerProgram:
        """The plain program; all have the same weights, and split their backward alike."""
        return self.programs[None]

    @cached_property
    def keep_by_row(self) -> tuple[tuple[int, Keep], ...]:
        """The first of the neighbouring rows with the same treatments, and these, for each row of a chunk."""
        firsts = accumulate((keep.layers for keep in self.keeps[:-1]), initial=0)
        return tuple((first, keep) for first, keep in zip(firsts, self.keeps, strict=True) for _ in range(keep.layers))

    def row(self, chunk: Chunk, row: Index) -> Index:
        """The index in the stack of a row of a chunk."""
        return chunk.index * self.order.rows_per_chunk + row

    def load_any(self, weights: Stack) -> Arrays:
        """The weights of a row, used only for their shapes."""
        return self.store.operands(self.store.fetch(weights, 0, 0))

    def taps(self, slots: int, weights: Stack, x: jax.Array, tokens: PyTree) -> Arrays:
        """Zeros for what split backwards of a chunk leave, [slot, row, ...], given shapes."""
        taps = lambda weights, x, tokens: self.program.zero_taps(self.load_any(weights), x, tokens)
        return stacked((slots, self.order.rows_per_chunk), taps, weights, x, tokens)

    def accumulate(
        self, gradients: Stack, dw: Arrays, row: jax.Array, layer_index: jax.Array, into: Accumulator
    ) -> Stack:
        """Add a layer's gradients (compute placement) to its row of a chunk in `gradients`."""
        if self.order.padded:
            into = into._replace(valid=into.valid & (layer_index != PADDING))
        return self.store.add(gradients, dw, self.row(into.chunk, row), into)

    # ---- padding

    def left_out_of_padding[Carry](
        self, chunk: Index, row: jax.Array, act: Callable[[Carry], Carry], carry: Carry
    ) -> Carry:
        """`act(carry)`, or `carry` unchanged in a row that only pads the stack: a branch, so padding takes no time.

        Pipeline ranks may branch differently, but members of a group branch alike, so collectives within a group are
        allowed. Programs with permutes run in every row, as do those that pass on host memory, which XLA would not move
        through a branch. On a GPU the host waits for what a branch depends on, so rows that hold a layer in every chunk
        do not use this.
        """
        act = jax.jit(act, inline=True)
        if permutes(jax.make_jaxpr(act)(carry).jaxpr) or any(map(is_on_host, jax.tree.leaves(carry))):
            return act(carry)
        return lax.cond(self.order.local(chunk)[row] != PADDING, act, lambda carry: carry, carry)

    def skip_padding(self, layer_index: jax.Array, y: jax.Array, x: jax.Array | int) -> jax.Array:
        """`y`, or `x` in a row that only pads the stack."""
        return jnp.where(layer_index != PADDING, y, x) if self.order.padded else y

    def site(self, key: Hashable, weights: Chunk, like: int, padded: bool, step: Step, tie: Tie | None) -> Site:
        """Rows of a chunk that take the same `step` with their weights, of which one is `like`; see `LayerLoop._walk`.

        While a row computes, the next one's weights are fetched, if that takes time, and its activations.
        """
        stacked, ahead = weights.stack[self.name], step.loads and self.store.ahead
        load = lambda row: self.store.fetch(stacked, self.row(weights, row), like)

        def fetch(row: jax.Array) -> tuple[Arrays | None, PyTree]:
            return load(row) if ahead else None, step.fetch(row)

        def run(fetched: tuple[Arrays | None, PyTree], row: jax.Array, carry: PyTree) -> PyTree:
            def act(carry: PyTree) -> PyTree:
                w, others = fetched
                w = self.store.operands(load(row) if w is None else w) if step.loads else {}
                return step.run(w, others, row, carry)

            return self.left_out_of_padding(weights.chunk, row, act, carry) if padded else act(carry)

        return Site(key, run, fetch, tie if self.store.ahead else None)


type _Fetched = tuple[Arrays, PyTree]


def next_block_tie(blocks: Sequence[tuple[str, str]], before: int | None, *, backward: bool) -> Tie | None:
    """Ties the weights of the next layer's first block to those of a block `before` whose products they must have
    arrived: to its last matrix alone, or in a forward to all of a later block. `blocks` as in `LayerStack`."""
    if before is None:
        return None
    (first, _), (block, last) = blocks[0], blocks[before]
    names = last if backward or before == 0 else ""
    return partial(_tied, first, block, names, host=backward and before == 0)


def _tied(
    first: str, block: str, names: str, coming: _Fetched, current: _Fetched, *, host: bool
) -> tuple[_Fetched, _Fetched]:
    """`coming` of the next layer and `own` of a layer, tied: weights of the latter's `block` whose names begin with
    `names` are there when the former's `first` block has its weights and, with `host`, its copies from the host. XLA
    takes such a copy for instant, and issues it just before its use. In the middle of a backward it has products beside
    it; a layer may begin with its feed-forward's last matrix, before which it would have none."""
    (after, others), (now, rest) = coming, current
    late = {name: weight for name, weight in now[block].items() if name.startswith(names)}
    arrived, late = lax.optimization_barrier(((after[first], others if host else None), late))
    weights, others = arrived[0], arrived[1] if host else others
    return ({**after, first: weights}, others), ({**now, block: {**now[block], **late}}, rest)
