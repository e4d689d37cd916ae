"""Matmuls of codes with scales of tiles: checks the kernel against float64, and compares its speed with cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.check import add_check, compared
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import compile_all, seconds_of, why_not
from pallas_kernels.device import INTERPRETER, Target, target
from pallas_kernels.tiled_matmul import REGISTRY, Request, tiled_matmul

KERNEL = "tiled_matmul/mosaic"
TILE = 128
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
RESULTS = ("out",)


@dataclass(frozen=True)
class Case:
    """[m, k] times [n, k]."""

    name: str
    m: int
    n: int
    k: int
    squares: bool = True
    """Whether the right operand has a scale for 128 x 128 codes; else for 128 of a row."""
    dtype: str = "bfloat16"
    forms: tuple[str, str] = (E4M3, E4M3)

    def arrays(self) -> tuple[jax.Array, ...]:
        """Codes and scales, powers of two, of both operands."""
        keys = iter(jax.random.split(jax.random.key(0), 4))
        codes = lambda rows, form: jax.random.normal(next(keys), (rows, self.k)).astype(form)
        scales = lambda rows: 2.0 ** jax.random.randint(next(keys), (rows, self.k // TILE), -3, 4)
        of_right = self.n // TILE if self.squares else self.n
        return codes(self.m, self.forms[0]), scales(self.m), codes(self.n, self.forms[1]), scales(of_right)

    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    def request(self, device: Target) -> Request:
        return Request(self.forms, self.m, self.n, self.k, TILE, dtype=self.dtype, **device._asdict())


CHECKED = (
    Case("one tile", 128, 128, 128),
    Case("rows, float32", 256, 384, 1024, squares=False, dtype="float32"),
    Case("e5m2", 384, 256, 2048, squares=False, forms=(E4M3, E5M2)),
    Case("e5m2 on the left", 512, 512, 512, forms=(E5M2, E4M3)),
    Case("many tiles", 2048, 3072, 4096),
    Case("a long sum", 512, 384, 32768, squares=False, dtype="float32"),
)
DRY = (Case("small", 128, 128, 256),)
TIMED = (
    Case("llama3-8b up", 8192, 14336, 4096),
    Case("llama3-8b down", 8192, 4096, 14336),
    Case("llama3-8b, gradient of up", 4096, 14336, 8192, squares=False),
    Case("llama3-70b up", 8192, 28672, 8192),
)


def program(case: Case, name: str, interpret: bool = False) -> Callable[..., tuple[jax.Array]]:
    """`case.arrays` -> (product,) by an implementation; not jitted in the interpreter."""

    def run(left: jax.Array, left_scales: jax.Array, right: jax.Array, right_scales: jax.Array) -> tuple[jax.Array]:
        options: dict[str, Any] = {"implementation": name, "interpret": interpret}
        return (tiled_matmul(left, left_scales, right, right_scales, dtype=jnp.dtype(case.dtype), **options),)

    return run if interpret else jax.jit(run)


def check(journal: Journal) -> None:
    """The kernel against float64."""
    for case in DRY if journal.dry else CHECKED:
        check_case(journal, case)


def check_case(journal: Journal, case: Case) -> None:
    """Adds the row of one case."""
    device = INTERPRETER if journal.dry else target()
    run = Checked(REGISTRY["mosaic"].supports(case.request(device)), partial(program, case), _float64)
    check_codes(journal, KERNEL, case.name, case.arrays, run)


class Checked(NamedTuple):
    """What a kernel for codes is compared with."""

    refused: str | None
    """Why it does not support the case; None if it does."""
    program: Callable[..., Callable[..., tuple[jax.Array]]]
    """By the name of an implementation, and whether it is interpreted."""
    float64: Callable[..., np.ndarray]
    """The product of the case's arrays."""


def check_codes(
    journal: Journal, kernel: str, name: str, arrays: Callable[[], tuple[jax.Array, ...]], checked: Checked
) -> None:
    """Adds the row of one case of a kernel for codes."""

    def compare() -> dict[str, Any]:
        given, run = arrays(), checked.program("mosaic", journal.dry)
        have, again, low = (jax.device_get(each(*given)) for each in (run, run, checked.program("xla")))
        return compared(("out",), have, again, low, (checked.float64(*given),))

    add_check(journal, kernel, name, checked.refused, compare)


def _float64(left: jax.Array, left_scales: jax.Array, right: jax.Array, right_scales: jax.Array) -> np.ndarray:
    def numbers(codes: jax.Array, scales: jax.Array) -> np.ndarray:
        each = np.asarray(scales, np.float64).repeat(codes.shape[0] // scales.shape[0], 0).repeat(TILE, 1)
        return np.asarray(codes.astype(jnp.float32), np.float64) * each

    return numbers(left, left_scales) @ numbers(right, right_scales).T


def measure(journal: Journal) -> None:
    """TFLOP/s of the kernel, of plain XLA, and of cuBLAS in FP8 with one scale for a matrix and in bfloat16."""
    for case in DRY if journal.dry else TIMED:
        measure_codes(journal, case, _paths(case))


def measure_codes(journal: Journal, case: Any, paths: dict[str, Callable[..., jax.Array]]) -> None:
    """TFLOP/s of each of several ways to the product of a case, unless an earlier run has them or time is up."""
    if journal.ended(case.name) or not journal.has_time(case.name, 10):
        return
    journal.begin(case.name)
    row = {"case": case.name, "m": case.m, "n": case.n, "k": case.k}
    _timed(journal, row, case.flops(), case.arrays(), paths)
    journal.add("over", case=case.name)


def _timed(
    journal: Journal,
    row: dict[str, Any],
    flops: float,
    arrays: tuple[jax.Array, ...],
    paths: dict[str, Callable[..., jax.Array]],
) -> None:
    """Adds `row` with the TFLOP/s of each of several ways to a product of so many FLOPs."""
    ready: dict[str, Callable[[], jax.Array]] = {}
    lowered = {name: (lambda function=function: jax.jit(function).lower(*arrays)) for name, function in paths.items()}
    for name, compiled in compile_all(journal, row["case"], lowered).items():
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
        journal.add("tiled", **row, by=name, tflops=flops / seconds["seconds"] / 1e12, **seconds)


def _paths(case: Case) -> dict[str, Callable[..., jax.Array]]:
    def plain(form: str) -> Callable[..., jax.Array]:
        dot = lambda a, b: jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.bfloat16)
        return lambda left, _, right, __: dot(left.astype(form), right.astype(form))

    ours = lambda name: lambda *arrays: program(case, name)(*arrays)[0]
    return {
        "mosaic": ours("mosaic"),
        "xla": ours("xla"),
        "cuBLAS FP8": plain(E4M3),
        "cuBLAS bfloat16": plain("bfloat16"),
    }
