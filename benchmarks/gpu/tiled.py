"""Matmuls of codes with scales of tiles, dense and of groups: checks the kernels against float64, and compares their
speed with cuBLAS, or with the grouped matmul in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.check import add_check, compared
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import compile_all, seconds_of, why_not
from pallas_kernels.device import INTERPRETER, Target, target
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_matmul import registry as of_numbers
from pallas_kernels.tiled_matmul import REGISTRY, Request, tiled_matmul, tiled_weight_gradients

DENSE, GROUPED = KERNELS = "tiled_matmul/mosaic", "grouped_tiled_matmul/mosaic"
TILE = 128
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
RESULTS = ("out",)


@dataclass(frozen=True)
class Case:
    """[m, k] times [n, k], or rows of groups times the matrix of each; of weights, the gradients of these, [k, n]."""

    name: str
    rows: int | tuple[int, ...]
    """m, or the rows of each group."""
    n: int
    k: int
    room: int = 0
    """Rows behind the last group."""
    squares: bool = True
    """Whether a dense right operand has a scale for 128 x 128 codes; else for 128 of a row."""
    dtype: str = "bfloat16"
    forms: tuple[str, str] = (E4M3, E4M3)
    of: Literal["rows", "weights"] = "rows"
    """What the result has: of weights each group's rows are filled up to whole tiles."""

    @property
    def kernel(self) -> str:
        return DENSE if isinstance(self.rows, int) else GROUPED

    @property
    def groups(self) -> tuple[int, ...]:
        """Rows of each group; a dense product is one group."""
        return (self.rows,) if isinstance(self.rows, int) else self.rows

    @property
    def places(self) -> tuple[int, ...]:
        """Rows of each group, with those that fill its last tile."""
        return self.groups if self.of == "rows" else tuple(-(-size // TILE) * TILE for size in self.groups)

    @property
    def m(self) -> int:
        return sum(self.places) + self.room

    @property
    def sizes(self) -> jax.Array | None:
        """Group sizes that the product gets."""
        return None if isinstance(self.rows, int) else jnp.array(self.places)

    def arrays(self) -> tuple[jax.Array, ...]:
        """Codes and scales, powers of two, of both operands."""
        keys = iter(jax.random.split(jax.random.key(0), 4))
        codes = lambda form, *shape: jax.random.normal(next(keys), shape).astype(form)
        scales = lambda *shape: 2.0 ** jax.random.randint(next(keys), shape, -3, 4)
        left, right = self.forms
        if self.of == "rows":
            stack, steps = () if isinstance(self.rows, int) else (len(self.rows),), self.k // TILE
            of_right = self.n // TILE if self.squares else self.n
            return (
                codes(left, self.m, self.k), scales(self.m, steps),
                codes(right, *stack, self.n, self.k), scales(*stack, of_right, steps),
            )  # fmt: skip
        of_groups = [jnp.arange(place) < size for size, place in zip(self.groups, self.places, strict=True)]
        there = jnp.concatenate([*of_groups, jnp.ones(self.room, bool)])[:, None]
        filled = lambda form, columns: jnp.where(there, codes("float32", self.m, columns), 0).astype(form)
        tiles = self.m // TILE
        return filled(left, self.k), scales(tiles, self.k), filled(right, self.n), scales(tiles, self.n)

    def flops(self) -> float:
        return 2.0 * sum(self.groups) * self.n * self.k

    def request(self, device: Target) -> Request:
        sides, groups = (self.m, self.n, self.k, TILE), None if isinstance(self.rows, int) else len(self.rows)
        options = {"groups": groups, "squares": self.squares, "of": self.of}
        return Request(self.forms, *sides, dtype=self.dtype, **options, **device._asdict())


_of_weights = partial(Case, of="weights")
CHECKED = {
    DENSE: (
        Case("one tile", 128, 128, 128),
        Case("rows, float32", 256, 384, 1024, squares=False, dtype="float32"),
        Case("e5m2", 384, 256, 2048, squares=False, forms=(E4M3, E5M2)),
        Case("e5m2 on the left", 512, 512, 512, forms=(E5M2, E4M3)),
        Case("many tiles", 2048, 3072, 4096),
        Case("a long sum", 512, 384, 32768, squares=False, dtype="float32"),
    ),
    GROUPED: (
        Case("one row of tiles", (1,), 128, 128),
        Case("single rows of tiles", (1,) * 40, 128, 256),
        Case("empty groups of tiles", (0, 70, 0, 0, 3, 0), 256, 128, room=20),
        Case("all tiles in one group", (0, 0, 4096, 0), 512, 768, forms=(E5M2, E4M3)),
        Case("uneven groups of tiles", (1, 700, 5, 0, 129, 127, 1000, 64), 1024, 1408, room=300),
        Case("no tiles at all", (0, 0), 128, 128, room=200),
        Case("a long sum of tiles", (300, 17, 90), 384, 16384),
        _of_weights("gradients of one row", (1,), 128, 128),
        _of_weights("gradients of empty groups", (0, 70, 0, 0, 3, 0), 256, 128, TILE),
        _of_weights("gradients of one group", (0, 0, 16384, 0), 512, 768, forms=(E4M3, E5M2)),
        _of_weights("gradients of uneven groups", (1, 700, 5, 0, 129, 127, 1000, 64), 1024, 1408, 3 * TILE),
        _of_weights("gradients of no rows", (0, 0), 128, 256, TILE),
    ),
}
DRY = {
    DENSE: (Case("small", 128, 128, 256),),
    GROUPED: (
        Case("small groups of tiles", (3, 0, 20), 128, 128, room=4),
        _of_weights("gradients of small groups", (3, 0, 20), 128, 128, TILE),
    ),
}
TIMED = {
    DENSE: (
        Case("llama3-8b up", 8192, 14336, 4096),
        Case("llama3-8b down", 8192, 4096, 14336),
        Case("llama3-8b, gradient of up", 4096, 14336, 8192, squares=False),
        Case("llama3-70b up", 8192, 28672, 8192),
    ),
    GROUPED: (
        Case("DeepSeek-V3 up, 32 experts", (1024,) * 32, 2048, 7168),
        Case("Qwen3-30B up, 16 experts", (4096,) * 16, 768, 2048),
        Case("Mixtral up, 8 experts", (2048,) * 8, 14336, 4096),
        _of_weights("DeepSeek-V3, gradient of up, 32 experts", (1024,) * 32, 2048, 7168),
        _of_weights("Qwen3-30B, gradient of up, 16 experts", (4096,) * 16, 768, 2048),
        _of_weights("Mixtral, gradient of up, 8 experts", (2048,) * 8, 14336, 4096),
    ),
}


def program(case: Case, name: str, interpret: bool = False) -> Callable[..., tuple[jax.Array]]:
    """`case.arrays` -> (product,) by an implementation; not jitted in the interpreter."""

    def run(*arrays: jax.Array) -> tuple[jax.Array]:
        options: dict[str, Any] = {"implementation": name, "interpret": interpret, "numbers_by": "xla"}
        function: Callable[..., jax.Array] = tiled_matmul if case.of == "rows" else tiled_weight_gradients
        return (function(*arrays, case.sizes, jnp.dtype(case.dtype), **options),)

    return run if interpret else jax.jit(run)


def check(journal: Journal) -> None:
    """The kernels against float64."""
    for kernel in KERNELS:
        for case in (DRY if journal.dry else CHECKED)[kernel]:
            check_case(journal, case)


def check_case(journal: Journal, case: Case) -> None:
    """Adds the row of one case."""

    def compare() -> dict[str, Any]:
        arrays, run = case.arrays(), program(case, "mosaic", journal.dry)
        have, again, low = (jax.device_get(each(*arrays)) for each in (run, run, program(case, "xla")))
        return compared(RESULTS, have, again, low, (_float64(case, *arrays),))

    refused = REGISTRY["mosaic"].supports(case.request(INTERPRETER if journal.dry else target()))
    add_check(journal, case.kernel, case.name, refused, compare)


def _float64(case: Case, *arrays: jax.Array) -> np.ndarray:
    left, left_scales, right, right_scales = (np.asarray(x.astype(jnp.float32), np.float64) for x in arrays)
    left, right = _numbers(left, left_scales), _numbers(right, right_scales)
    ends = np.cumsum(case.places)
    owns = [slice(end - size, end) for end, size in zip(ends, case.places, strict=True)]
    if case.of == "weights":
        return np.stack([left[own].T @ right[own] for own in owns])
    out = np.zeros((case.m, case.n))
    for own, matrix in zip(owns, right[None] if right.ndim == 2 else right, strict=True):
        out[own] = left[own] @ matrix.T
    return out


def _numbers(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    for axis in (-2, -1):
        scales = scales.repeat(codes.shape[axis] // scales.shape[axis], axis)
    return codes * scales


def measure(journal: Journal, kernels: tuple[str, ...] = KERNELS) -> None:
    """TFLOP/s of kernels, of plain XLA, and of cuBLAS in FP8 with one scale for a matrix and in bfloat16, or of the
    grouped matmul in bfloat16; cases that an earlier run has are left out, and those for which time is up."""
    for kernel in kernels:
        for case in (DRY if journal.dry else TIMED)[kernel]:
            if journal.ended(case.name) or not journal.has_time(case.name, 10):
                continue
            journal.begin(case.name)
            _measure_case(journal, case)
            journal.add("over", case=case.name)


def _measure_case(journal: Journal, case: Case) -> None:
    """Adds a row with the TFLOP/s of each of several ways to the product of a case."""
    row = {"case": case.name, "m": case.m, "n": case.n, "k": case.k}
    arrays = case.arrays()
    ready: dict[str, Callable[[], jax.Array]] = {}
    ours = lambda name: lambda *arrays: program(case, name)(*arrays)[0]
    paths = {"mosaic": ours("mosaic"), "xla": ours("xla"), **_others(case)}
    lowered = {name: (lambda function=function: jax.jit(function).lower(*arrays)) for name, function in paths.items()}
    for name, compiled in compile_all(journal, case.name, lowered).items():
        if isinstance(compiled, Exception):
            journal.add("tiled", **row, by=name, **why_not(compiled))
            continue
        ready[name] = lambda compiled=compiled: compiled(*arrays)
        try:
            jax.block_until_ready(ready[name]())
        except Exception as error:  # reported in the table; the others are still timed
            journal.add("tiled", **row, by=name, **why_not(error))
            del ready[name]
    for name, seconds in seconds_of(ready, 2 if journal.dry else 7).items() if ready else ():
        journal.add("tiled", **row, by=name, tflops=case.flops() / seconds["seconds"] / 1e12, **seconds)


def _others(case: Case) -> dict[str, Callable[..., jax.Array]]:
    """Ways to a product of such sides that are not ours."""

    def dense(form: str) -> Callable[..., jax.Array]:
        dot = lambda a, b: jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.bfloat16)
        return lambda left, _, right, __: dot(left.astype(form), right.astype(form))

    def grouped(rows: jax.Array, _: jax.Array, right: jax.Array, __: jax.Array) -> jax.Array:
        sizes, rows = jnp.array(case.places), rows.astype(jnp.bfloat16)
        if case.of == "rows":
            return grouped_matmul(rows, jnp.swapaxes(right, 1, 2).astype(jnp.bfloat16), sizes, implementation="mosaic")
        sides = rows.shape[0], len(case.places), rows.shape[1], right.shape[1]
        of_numbers.REGISTRY.choose("mosaic", of_numbers.Request(*sides, dtype="bfloat16", **target()._asdict()))
        return of_numbers.REGISTRY["mosaic"].of_weights(rows, right.astype(jnp.bfloat16), sizes)

    if isinstance(case.rows, int):
        return {"cuBLAS FP8": dense(E4M3), "cuBLAS bfloat16": dense("bfloat16")}
    return {"mosaic bfloat16": grouped}
