"""The programs that a generator runs, for rows and lengths in buckets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
from jax.sharding import Mesh, PartitionSpec
from jax.stages import Wrapped
from jaxtyping import PyTree

from jaxpar.config import Config
from jaxpar.generation.functions import GenerationFunctions, Rows
from jaxpar.generation.layout import BY_PART, BY_ROW, generation_layout
from jaxpar.generation.sampling import Drawn, Sampling
from jaxpar.generation.unstacked import unstacked_layout
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.mesh.build import mapped
from jaxpar.mesh.parameters import Partitions
from jaxpar.runtime.batch import FORWARD, BatchLayout

COMPILER_OPTIONS = {"xla_gpu_dot_merger_threshold_mb": 0}
"""XLA would join the matrices of products that have the same input, at every token."""


@dataclass(frozen=True)
class Programs:
    """Prefill and decoding on a mesh; `config` has its axes filled in. For the others see `Generator`."""

    config: Config
    mesh: Mesh
    sampling: Sampling
    zero: int
    _compiled: dict[tuple[int, ...], Wrapped] = field(default_factory=dict, init=False)

    def prefill(self, rows: int, prompt: int, capacity: int, *, answers: int = 1, records: bool = False) -> Wrapped:
        """Compiled on first use: (weights, batch, lengths, numbers, seed) -> (rows, (drawn, records)), with so many
        `answers` to each prompt."""
        key = rows, prompt, capacity, answers, records
        if key not in self._compiled:
            functions, weights, state, drawn = self.parts(rows, prompt, capacity, answers=answers, records=records)
            batch = BatchLayout(FORWARD, (rows, prompt))
            layouts = weights, batch.partitions, BY_ROW, BY_ROW, PartitionSpec()
            prefill = mapped(functions.prefill, self.mesh, functions.dtype, layouts, (state, (drawn, BY_PART)))
            self._compiled[key] = jax.jit(prefill)
        return self._compiled[key]

    def decode(self, rows: int, capacity: int, *, records: bool = False) -> Wrapped:
        """Compiled on first use: (weights, rows, seed) -> (rows, (drawn, records)); the given rows are donated."""
        key = rows, capacity, records
        if key not in self._compiled:
            functions, weights, state, drawn = self.parts(rows, 0, capacity, records=records)
            layouts = weights, state, PartitionSpec()
            by_row = PartitionSpec((*DATA_AXES, "tensor"))
            decode = mapped(functions.decode, self.mesh, functions.dtype, layouts, (state, (drawn, by_row)))
            self._compiled[key] = jax.jit(decode, donate_argnums=1, compiler_options=COMPILER_OPTIONS)
        return self._compiled[key]

    def parts(
        self, rows: int, tokens: int, capacity: int, *, answers: int = 1, records: bool = False
    ) -> tuple[GenerationFunctions, Partitions, Rows, Drawn]:
        """The functions, for a batch of `tokens` tokens a row, and the layouts of weights, `Rows` and `Drawn`."""
        layout = generation_layout(self.config, self.mesh, rows=rows, tokens=tokens, zero=self.zero)
        functions = GenerationFunctions(layout, capacity, self.sampling, answers, records)
        cache = {
            kind: [{block.part.name: block.cache for block in functions.stages.prototype(kind).blocks}] * stack.rows
            for kind, stack in layout.order.stacks.items()
        }
        seen = BY_ROW if self.sampling.repetition_penalty != 1.0 else None
        state, drawn = _specs(Rows, cache, *[BY_ROW] * 3, seen), _specs(Drawn, BY_ROW, BY_ROW)
        return functions, unstacked_layout(layout.placements.storage.layout, layout.order), state, drawn

    @property
    def compiles(self) -> int:
        """How many programs were compiled."""
        return len(self._compiled)


def _specs[Kind](kind: Callable[..., Kind], *fields: PyTree[PartitionSpec]) -> Kind:
    """A named tuple of partitions."""
    return kind(*fields)
