"""Grouped matmuls on the device: checks the kernels against float64, and compares their speed with other paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.check import add_check, compared
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import timed_ways
from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_matmul.registry import REGISTRY, Request

KERNELS = ("mosaic", "triton")
"""Implementations that wait for a record."""


@dataclass(frozen=True)
class Case:
    """Rows and groups."""

    name: str
    sizes: tuple[int, ...]
    k: int
    n: int
    room: int = 0
    """Rows behind the last group."""
    dtype: str = "bfloat16"

    @property
    def rows(self) -> int:
        return sum(self.sizes) + self.room

    def arrays(self) -> tuple[jax.Array, ...]:
        """Rows, weights and the gradient of the result."""
        keys = iter(jax.random.split(jax.random.key(0), 3))
        normal = lambda *shape: jax.random.normal(next(keys), shape, jnp.float32).astype(self.dtype)
        return normal(self.rows, self.k), normal(len(self.sizes), self.k, self.n), normal(self.rows, self.n)

    def flops(self) -> float:
        """Of the product, and of each of its two gradients."""
        return 2.0 * sum(self.sizes) * self.k * self.n


CHECKED = (
    Case("one row", (1,), 64, 64),
    Case("single rows", (1,) * 40, 128, 192),
    Case("empty groups", (0, 70, 0, 0, 3, 0), 256, 128, room=20),
    Case("all in one group", (0, 0, 4096, 0), 512, 768),
    Case("uneven", (1, 700, 5, 0, 129, 127, 1000, 64), 1024, 1408, room=300),
    Case("nothing at all", (0, 0), 128, 128, room=200),
    Case("float16", (300, 17, 90), 512, 960, dtype="float16"),
)
DRY = (Case("small", (3, 0, 20), 64, 64, room=4),)
RESULTS = ("out", "d_rows", "d_weights")


def uneven(rows: int, groups: int) -> tuple[int, ...]:
    """Sizes as a router makes them: exponentially distributed shares."""
    share = np.random.default_rng(0).exponential(size=groups)
    ends = np.floor(np.cumsum(share) / share.sum() * rows + 0.5).astype(int)
    return tuple(int(size) for size in np.diff(ends, prepend=0))


TIMED = (
    Case("mixtral-8x7b", uneven(16384, 8), 4096, 14336),
    Case("qwen3-30b-a3b", uneven(65536, 128), 2048, 768),
    Case("deepseek-v3, 32 of 256", uneven(32768, 32), 7168, 2048),
    Case("even, 16 groups", (1024,) * 16, 2048, 4096),
)


def check(journal: Journal) -> None:
    """Product and gradients against float64: at most twice the error of the plain form in the same dtype."""
    for name in KERNELS:
        for case in DRY if journal.dry else CHECKED:
            check_case(journal, case, name)


def check_case(journal: Journal, case: Case, name: str) -> None:
    """Adds the row of one case of an implementation."""
    device = INTERPRETER if journal.dry else target()
    asked = Request(case.rows, len(case.sizes), case.k, case.n, dtype=case.dtype, **device._asdict())
    compare = partial(_compare, case, name, journal.dry)
    add_check(journal, f"grouped_matmul/{name}", case.name, REGISTRY[name].supports(asked), compare)


def program(case: Case, name: str, interpret: bool = False) -> Callable[..., Any]:
    """`case.arrays` -> `RESULTS` by an implementation; not jitted in the interpreter, which knows one launch at a
    time."""
    sizes, options = jnp.asarray(case.sizes, jnp.int32), {"implementation": name, "interpret": interpret}

    def run(rows: jax.Array, weights: jax.Array, d_out: jax.Array) -> tuple:
        out, pull = jax.vjp(lambda rows, weights: grouped_matmul(rows, weights, sizes, **options), rows, weights)
        return out, *pull(d_out)

    return run if interpret else jax.jit(run)


def _compare(case: Case, name: str, dry: bool) -> dict[str, Any]:
    arrays = case.arrays()
    run = program(case, name, dry)
    have, again, low = (jax.device_get(each(*arrays)) for each in (run, run, program(case, "xla")))
    return compared(RESULTS, have, again, low, _float64(case, arrays))


def _float64(case: Case, arrays: tuple[jax.Array, ...]) -> list[np.ndarray]:
    x, w, d = (np.asarray(x, np.float64) for x in arrays)
    found = [np.zeros_like(each) for each in (d, x, w)]
    first = 0
    for group, size in enumerate(case.sizes):
        own = slice(first, first + size)
        of_group = x[own] @ w[group], d[own] @ w[group].T, x[own].T @ d[own]
        for each, result in zip(found, of_group, strict=True):
            each[group if each.ndim == 3 else own] = result
        first += size
    return found


def measure(journal: Journal) -> None:
    """TFLOP/s of the product and of each gradient, by our kernels, cuBLAS group by group, JAX's own and tokamax'."""
    for case in DRY if journal.dry else TIMED:
        if journal.ended(case.name) or not journal.has_time(case.name, 20):
            continue
        journal.begin(case.name)
        _measure_case(journal, case)
        journal.add("over", case=case.name)


def _measure_case(journal: Journal, case: Case) -> None:
    row = {"case": case.name, "rows": case.rows, "groups": len(case.sizes), "k": case.k, "n": case.n}
    arrays = case.arrays()
    for name, way, seconds in timed_ways(journal, "grouped", row, _paths(case), arrays):
        tflops = case.flops() / seconds["seconds"] / 1e12
        journal.add("grouped", **row, by=name, way=way, tflops=tflops, **seconds)


def _paths(case: Case) -> dict[str, dict[str, Callable[..., Any]]]:
    """By name, then way: functions of (rows, weights, gradient of the product)."""
    sizes = jnp.asarray(case.sizes, jnp.int32)

    def ways(product: Callable[[jax.Array, jax.Array], jax.Array]) -> dict[str, Callable[..., Any]]:
        pull = lambda x, w, d: jax.vjp(product, x, w)[1](d)
        return {
            "forward": lambda x, w, d: product(x, w), "d_rows": lambda x, w, d: pull(x, w, d)[0],
            "d_weights": lambda x, w, d: pull(x, w, d)[1],
        }  # fmt: skip

    ours = lambda name: ways(lambda x, w: grouped_matmul(x, w, sizes, implementation=name))
    found = {name: ours(name) for name in (*KERNELS, "xla")} | {"cuBLAS": _group_by_group(case)}
    found["ragged_dot"] = ways(lambda x, w: jax.lax.ragged_dot(x, w, sizes))
    if target().compute_capability == 9.0:
        found["jax mosaic"] = _jax_mosaic(sizes)
    if find_spec("tokamax") is not None:
        tokamax: Any = import_module("tokamax")
        found["tokamax"] = ways(lambda x, w: tokamax.ragged_dot(x, w, sizes))
    return found


def _group_by_group(case: Case) -> dict[str, Callable[..., Any]]:
    """A product of cuBLAS for each group, of sizes that are known when compiling: what no layer of experts can run."""
    ends = np.cumsum(case.sizes).tolist()
    groups = [(number, slice(end - size, end)) for number, (end, size) in enumerate(zip(ends, case.sizes, strict=True))]

    def joined(parts: list[jax.Array], columns: int) -> jax.Array:
        return jnp.concatenate([*parts, jnp.zeros((case.room, columns), case.dtype)])

    return {
        "forward": lambda x, w, d: joined([x[own] @ w[number] for number, own in groups], case.n),
        "d_rows": lambda x, w, d: joined([d[own] @ w[number].T for number, own in groups], case.k),
        "d_weights": lambda x, w, d: jnp.stack([x[own].T @ d[own] for _, own in groups]),
    }


def _jax_mosaic(sizes: jax.Array) -> dict[str, Callable[..., Any]]:
    """JAX's own kernels for Hopper, which have no derivative."""
    of_rows: Any = import_module("jax.experimental.pallas.ops.gpu.ragged_dot_mgpu").ragged_dot
    of_weights: Any = import_module("jax.experimental.pallas.ops.gpu.transposed_ragged_dot_mgpu").transposed_ragged_dot
    options = {"block_m": 128, "block_n": 128, "block_k": 64, "max_concurrent_steps": 4, "grid_block_n": 4}
    return {
        "forward": lambda x, w, d: of_rows(x, w, group_sizes=sizes, **options),
        "d_rows": lambda x, w, d: of_rows(d, w, group_sizes=sizes, transpose_rhs=True, **options),
        "d_weights": lambda x, w, d: of_weights(x, d, group_sizes=sizes, **options),
    }
