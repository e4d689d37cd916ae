"""One layer's attention under each context strategy, forward and backward, on virtual CPU devices."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.turns import CLOCKS, processor_name, spread, take_turns
from jaxpar.attention import CONTEXT_STRATEGIES, AttentionRequest, ContextLayout, RowTokens, attend, context_layout
from jaxpar.attention.balance import imbalance, run_length, sequence_order, visible_pairs_per_rank
from jaxpar.attention.context import neighbours
from jaxpar.attention.row import Order
from jaxpar.config import UserError
from jaxpar.config.plan import AxisSizes
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.collectives import gather_context
from pallas_kernels.attention import Settings
from pallas_kernels.masks import Mask

type Orders = Sequence[Order | Literal["auto"]]

HEADS, TOKENS = PartitionSpec(None, "context"), PartitionSpec(None, "context")
ONE_DEVICE = "one device"


@dataclass(frozen=True)
class Sizes:
    """A row of one layer, in float32."""

    context: int = 8
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    window: int | None = None
    documents: int | None = None
    """Mean tokens of the documents that share a row, of geometric lengths; None is one document."""
    block: int = 128
    """Queries and keys that are held at a time."""

    @property
    def mask(self) -> Mask:
        """The mask of attention."""
        return Mask(window=self.window, segmented=self.documents is not None)

    def request(self, length: int) -> AttentionRequest:
        """The attention request for rows of `length`."""
        return AttentionRequest(
            platform="cpu", dtype="float32", heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim,
            packed=self.documents is not None, window=self.window, softcap=None, prefix=False,
            sequence=length, context=self.context, ulysses=neighbours(self.context, self.heads, self.context),
        )  # fmt: skip

    def segments(self, length: int) -> np.ndarray:
        """Document of each token of the row, [1, length]."""
        if self.documents is None:
            return np.ones((1, length), np.int32)
        lengths = np.random.default_rng(0).geometric(1 / self.documents, size=length)
        return np.repeat(np.arange(1, length + 1, dtype=np.int32), lengths)[None, :length]


def measure(sizes: Sizes, lengths: Sequence[int], orders: Orders, *, rounds: int) -> dict[str, Any]:
    """Times, compiled memory, formulas of traffic and balance of each strategy in each order, for rows of each length.

    Raises UserError where a length cannot be split over the ranks.
    """
    load_before, began = os.getloadavg(), time.perf_counter()
    rows = [row for length in lengths for row in _measure_length(sizes, length, orders, rounds)]
    return {
        "checks": "cost of the strategies' programs on virtual CPU devices, not the speed of GPUs",
        "machine": {
            "processor": processor_name(), "cores": len(os.sched_getaffinity(0)),
            "load_before": load_before, "load": os.getloadavg(),
        },
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "sizes": asdict(sizes),
        "rounds": rounds,
        "seconds": time.perf_counter() - began,
        "rows": rows,
    }  # fmt: skip


def _measure_length(sizes: Sizes, length: int, orders: Orders, rounds: int) -> list[dict[str, Any]]:
    request, rows, programs = sizes.request(length), [], {}
    mesh = build_mesh(AxisSizes(), jax.devices()[:1])
    plain = ContextLayout()
    first = _program(sizes, length, mesh, "allgather", plain)
    rows.append({"length": length, "strategy": ONE_DEVICE, "order": plain.order, **_compiled(first)})
    programs[ONE_DEVICE, plain.order] = first.run
    mesh = build_mesh(AxisSizes(context=sizes.context), jax.devices()[: sizes.context])
    for entry in CONTEXT_STRATEGIES:
        reason = entry.supports(request)
        if reason is not None:
            rows.append({"length": length, "strategy": entry.name, "order": "-", "refused": reason})
            continue
        for layout in dict.fromkeys(context_layout(entry.name, order, request) for order in orders):
            if layout.ulysses == sizes.context and layout.order != "contiguous":
                continue  # whole rows on each rank: nothing to balance
            program = _program(sizes, length, mesh, entry.name, layout)
            traffic = entry.traffic(request, layout)
            programs[entry.name, layout.order] = program.run
            rows.append({
                "length": length, "strategy": entry.name, "order": layout.order, "ulysses": layout.ulysses,
                "sent_bytes": {"forward": traffic.forward, "backward": traffic.backward},
                "imbalance": _imbalance(sizes, length, layout), **_compiled(program),
            })  # fmt: skip
    for run in programs.values():
        jax.block_until_ready(run())
    times = take_turns(programs, rounds)
    for row in rows:
        name = row["strategy"], row["order"]
        if name in programs:
            row |= {f"{clock}_s": spread(times[clock][name]) for clock in CLOCKS}
            row["processor_ratio"] = statistics.median(times["processor"][name]) / statistics.median(
                times["processor"][ONE_DEVICE, plain.order]
            )
    return rows


@dataclass(frozen=True)
class _Program:
    compiled: jax.stages.Compiled
    inputs: tuple[jax.Array, ...]

    def run(self) -> Any:
        return self.compiled(*self.inputs)


def _program(sizes: Sizes, length: int, mesh: Mesh, strategy: str, layout: ContextLayout) -> _Program:
    """Output and gradients of one layer's attention, and what it is called with."""
    function = attend("xla", strategy, layout)
    ranks = mesh.shape["context"] // layout.ulysses
    run = run_length(layout.order, length, ranks)
    settings = Settings(sizes.mask, sizes.head_dim**-0.5, None, sizes.block, sizes.block, run)

    def local(q: jax.Array, k: jax.Array, v: jax.Array, indices: jax.Array, segments: jax.Array) -> tuple:
        row = RowTokens(indices, segments, gather_context(indices), gather_context(segments))
        out, pull = jax.vjp(lambda q, k, v: function(settings, q, k, v, row), q, k, v)
        return out, *pull(out)

    specs = (HEADS, HEADS, HEADS, TOKENS, TOKENS)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(HEADS,) * 4)
    inputs = tuple(
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip(_inputs(sizes, length, _indices(layout.order, length, ranks)), specs, strict=True)
    )
    return _Program(jax.jit(mapped).lower(*inputs).compile(), inputs)


def _inputs(sizes: Sizes, length: int, indices: np.ndarray) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    heads = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    arrays = (rng.normal(size=(1, length, n, sizes.head_dim)).astype(np.float32) for n in heads)
    return *(x[:, indices] for x in arrays), indices[None], sizes.segments(length)[:, indices]


def _indices(order: str, length: int, ranks: int) -> np.ndarray:
    try:
        return sequence_order(order, length, ranks)
    except ValueError as error:
        raise UserError(f"--lengths: {error}") from None


def _imbalance(sizes: Sizes, length: int, layout: ContextLayout) -> float:
    """Of the pairs of the ranks; under Ulysses ranks of a group share theirs by heads."""
    ranks = sizes.context // layout.ulysses
    indices = _indices(layout.order, length, ranks)
    return imbalance(visible_pairs_per_rank(sizes.mask, sizes.segments(length), indices, ranks))


def _compiled(program: _Program) -> dict[str, int]:
    """Bytes on one device."""
    memory: Any = program.compiled.memory_analysis()
    return {"argument_bytes": memory.argument_size_in_bytes, "temporary_bytes": memory.temp_size_in_bytes}
