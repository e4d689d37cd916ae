"""The arrays, static arguments and launch that attention's kernels share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import jax

from pallas_kernels.attention.mosaic.bounds import Limits, Visits
from pallas_kernels.attention.mosaic.schedule import CONSUMERS, TILE, Schedule, specialise
from pallas_kernels.attention.mosaic.scores import Scores
from pallas_kernels.pallas import mosaic_gpu as plgpu


class Arrays(NamedTuple):
    """Operands of a launch, and in a kernel references to them in global memory."""

    q: Any
    """[batch, queries, heads, width]."""
    k: Any
    """[batch, keys, kv_heads, width]; values have their own width."""
    v: Any
    d_out: Any
    """[batch, queries, heads, value_width]; in the forward this and the next are None."""
    statistics: Any
    """[batch, heads, 2, padded_queries], by `Scores.statistics`."""
    queries: Any
    """[batch, rows, padded_queries], by `query_limits`."""
    keys: Any
    """[batch, rows, padded_keys], by `key_tokens`."""
    visits: Visits
    results: tuple[Any, ...] = ()
    """The arrays that a kernel writes."""


class Options(NamedTuple):
    """Static arguments of every launch."""

    limits: Limits
    scores: Scores
    matmuls: Any
    programs: int
    interpret: Any


@dataclass(frozen=True)
class Kernel(ABC):
    """An attention kernel."""

    schedule: Schedule
    group: int
    """Query heads of a KV head."""
    tiles: Any
    limits: Limits
    scores: Scores
    matmuls: Any
    width: int
    dtype: Any

    @classmethod
    def by_queries(cls, arrays: Arrays, tiles: Any, options: Options, **more: Any) -> Self:
        """The kernel whose tiles are queries."""
        (batch, _, heads, width), (_, keys, kv_heads, _) = arrays.q.shape, arrays.k.shape
        head_bytes, group = keys * (width + arrays.v.shape[3]) * arrays.q.dtype.itemsize, heads // kv_heads
        schedule = Schedule.of(arrays.queries.shape[2] // TILE, batch, heads, head_bytes, group, options.programs)
        return cls(schedule, group, tiles, *options[:3], width, arrays.q.dtype, **more)

    @abstractmethod
    def memory(self, value_width: int) -> Any:
        """The types of its shared memory."""

    @abstractmethod
    def produce(self, arrays: Arrays, memory: Any) -> None:
        """Run on the warpgroup that loads."""

    @abstractmethod
    def consume(self, arrays: Arrays, memory: Any, warpgroup: Any) -> None:
        """Run on each warpgroup that computes."""

    def launch(self, arrays: Arrays, results: Any, name: str, interpret: Any, *sums: Any) -> Any:
        """`results`, computed in the warpgroups of every program; `sums` are added to, and the first results there."""
        operands, tree = jax.tree.flatten(arrays)

        def kernel(*refs: Any, memory: Any) -> None:
            inside = tree.unflatten(refs[: len(operands)])._replace(results=refs[len(operands) :])
            specialise(partial(self.consume, inside, memory), partial(self.produce, inside, memory))

        run: Callable[..., Any] = plgpu.kernel(
            kernel,
            out_type=results,
            scratch_types={"memory": self.memory(arrays.v.shape[3])},
            compiler_params=plgpu.CompilerParams(approx_math=True),
            grid=(self.schedule.programs,),
            grid_names=("program",),
            num_threads=CONSUMERS + 1,
            thread_name="warpgroup",
            kernel_name=f"attention_{name}",
            interpret=interpret,
        )
        return run(*operands, *sums)
