"""The programs that a generator runs, for rows and lengths in buckets."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jax.stages import Wrapped
from jaxtyping import PyTree

from jaxpar.checkpoint.same_program import compared
from jaxpar.config import Config
from jaxpar.generation.functions import GenerationFunctions, Prefix, Rows
from jaxpar.generation.layout import BY_PART, BY_ROW, generation_layout
from jaxpar.generation.mixture.functions import MixtureFunctions, mixture_layout
from jaxpar.generation.mixture.router import Mixing
from jaxpar.generation.sampling import Drawn, Draws
from jaxpar.generation.unstacked import unstacked_layout
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.mesh.build import mapped
from jaxpar.mesh.parameters import Partitions
from jaxpar.runtime.batch import FORWARD, LABELS, BatchLayout

BY_TOKEN = PartitionSpec(DATA_AXES, "context")
SCORED = (*FORWARD, LABELS)
"""The fields of rows that are scored."""
COMPILER_OPTIONS = {"xla_gpu_dot_merger_threshold_mb": 0}
"""XLA would join the matrices of products that have the same input, at every token."""


@dataclass(frozen=True)
class Programs:
    """Prefill and decoding on a mesh; `config` has its axes filled in. For the others see `Generator`."""

    config: Config
    mesh: Mesh
    zero: int
    mixing: Mixing | None = None
    """The sizes of a mixture; None for one model."""
    _compiled: dict[tuple[Hashable, ...], Callable[..., PyTree]] = field(default_factory=dict, init=False)
    _idle: dict[tuple[int, int], tuple[GenerationFunctions, PyTree]] = field(default_factory=dict, init=False)
    """Functions, and whether each array of the cache has pages, by (slots, capacity): rollouts ask in each step."""

    def prefill(
        self, prompts: int, length: int, capacity: int, *, answers: int = 1, records: bool = False
    ) -> Callable[..., PyTree]:
        """Compiled on first use: (weights, batch, lengths, draws) -> (prefix, (drawn, records)), with so many
        `answers` to each prompt."""

        def make() -> Wrapped:
            functions, weights, state, drawn = self.parts(prompts, length, capacity, records=records)
            batch = BatchLayout(FORWARD, (prompts, length))
            layouts = weights, batch.partitions, BY_ROW, state.draws
            prefix = self.prefix_layout(capacity)
            prefill = mapped(functions.prefill, self.mesh, functions.dtype, layouts, (prefix, (drawn, BY_PART)))
            return jax.jit(prefill)

        return self._cached("prefill", prompts, answers, length, capacity, records, make=make)

    def insert(
        self, prompts: int, length: int, rows: int, capacity: int, pool: int, *, answers: int = 1
    ) -> Callable[..., PyTree]:
        """Compiled on first use: (rows, prefix, copies, filled, sizes) -> rows; the input rows, whose cache has
        `pool` pages, are donated."""

        def make() -> Wrapped:
            functions, _, state, _ = self.parts(rows, 0, capacity)
            prefix = self.prefix_layout(capacity)
            layouts = state, prefix, BY_ROW, BY_ROW, BY_ROW
            return jax.jit(mapped(functions.insert, self.mesh, functions.dtype, layouts, state), donate_argnums=0)

        return self._cached("insert", prompts, length, answers, rows, capacity, pool, make=make)

    def decode(self, rows: int, capacity: int, pool: int, *, records: bool = False) -> Callable[..., PyTree]:
        """Compiled on first use: (weights, rows, active) -> (rows, (drawn, records)); the given rows are donated."""

        def make() -> Wrapped:
            functions, weights, state, drawn = self.parts(rows, 0, capacity, records=records)
            by_row = PartitionSpec((*DATA_AXES, "tensor"))
            layouts, made = (weights, state, BY_ROW), (state, (drawn, by_row))
            decode = mapped(functions.decode, self.mesh, functions.dtype, layouts, made)
            return jax.jit(decode, donate_argnums=1, compiler_options=COMPILER_OPTIONS)

        return self._cached("decode", rows, capacity, pool, records, make=make)

    def scores(self, rows: int, length: int) -> Callable[..., PyTree]:
        """Compiled on first use: (weights, batch, lengths, adapter) -> log-probabilities [row, token]."""

        def make() -> Wrapped:
            functions, weights, *_ = self.parts(rows, length, length)
            layouts = weights, BatchLayout(SCORED, (rows, length)).partitions, BY_ROW, BY_ROW
            return jax.jit(mapped(functions.scores, self.mesh, functions.dtype, layouts, BY_TOKEN))

        return self._cached("scores", rows, length, make=make)

    def prefix_layout(self, capacity: int) -> Prefix:
        """The partitions of prompts that were read."""
        _, _, state, _ = self.parts(0, 0, capacity)
        return _specs(Prefix, state.cache, BY_ROW, BY_ROW, BY_ROW, state.draws)

    def idle(self, prefix: Prefix, rows: int, capacity: int, pool: int) -> Rows:
        """Slots without rows, and a cache of `pool` pages, of all devices together."""
        if (key := (rows, capacity)) not in self._idle:
            functions, *_ = self.parts(rows, 0, capacity)
            self._idle[key] = functions, functions.map_blocks(lambda block: block.paged(capacity))
        functions, paged = self._idle[key]
        by_row = lambda leaf: jnp.zeros((rows, *leaf.shape[1:]), leaf.dtype, device=leaf.sharding)

        def pages(leaf: jax.Array) -> jax.Array:
            shape = pool, leaf.shape[1], functions.page, *leaf.shape[3:]
            return jnp.zeros(shape, leaf.dtype, device=leaf.sharding)

        cache = jax.tree.map(lambda yes, leaf: jax.tree.map(pages if yes else by_row, leaf), paged, prefix.cache)
        token, lengths, draws, seen = jax.tree.map(by_row, (prefix.token, prefix.lengths, prefix.draws, prefix.seen))
        table = jnp.zeros((rows, -(-capacity // functions.page)), np.int32, device=prefix.lengths.sharding)
        return Rows(cache, token, lengths, draws, seen, table)

    def parts(
        self, rows: int, tokens: int, capacity: int, *, records: bool = False
    ) -> tuple[GenerationFunctions, Partitions, Rows, Drawn]:
        """The functions, for a batch of `tokens` tokens a row, and the layouts of weights, `Rows` and `Drawn`."""
        layout = generation_layout(self.config, self.mesh, rows=rows, tokens=tokens, zero=self.zero)
        weights = unstacked_layout(layout.placements.storage.layout, layout.order)
        if self.mixing is None:
            functions = GenerationFunctions(layout, capacity, records)
        else:
            functions = MixtureFunctions(layout, capacity, records, mixing=self.mixing)
            weights = mixture_layout(weights, self.mixing.models)
        cache = functions.map_blocks(lambda block: block.cache)
        draws = _specs(Draws, *[BY_ROW] * len(Draws._fields))
        state, drawn = _specs(Rows, cache, BY_ROW, BY_ROW, draws, BY_ROW, BY_ROW), _specs(Drawn, BY_ROW, BY_ROW)
        return functions, weights, state, drawn

    def _cached(self, *key: Hashable, make: Callable[[], Wrapped]) -> Callable[..., PyTree]:
        if key not in self._compiled:
            self._compiled[key] = compared(make(), "generation")
        return self._compiled[key]

    @property
    def compiles(self) -> int:
        """The number of programs that were compiled."""
        return len(self._compiled)


def _specs[Kind](kind: Callable[..., Kind], *fields: PyTree[PartitionSpec]) -> Kind:
    """A named tuple of partitions."""
    return kind(*fields)
