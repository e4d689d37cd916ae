"""Grouped matmuls of codes with scales of tiles: checks the kernels against float64, and compares their speed with the
grouped matmul in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.tiled import E4M3, E5M2, TILE, Checked, check_codes, measure_codes
from pallas_kernels.device import INTERPRETER, Target, target
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_matmul import registry as of_numbers
from pallas_kernels.tiled_matmul import REGISTRY, Request, tiled_matmul, tiled_weight_gradients

KERNEL = "grouped_tiled_matmul/mosaic"
RESULTS = ("out",)


@dataclass(frozen=True)
class Case:
    """Rows of each group, and the sides of its matrix [n, k]; of gradients it is [k, n]."""

    name: str
    sizes: tuple[int, ...]
    n: int
    k: int
    room: int = 0
    """Rows behind the last group."""
    form: str = E4M3
    """Of the rows, or of the gradients of outputs."""
    of: Literal["rows", "weights"] = "rows"
    """What the result has: of weights each group's rows are filled up to whole tiles."""

    @property
    def places(self) -> tuple[int, ...]:
        """Rows of each group, with those that fill its last tile."""
        return self.sizes if self.of == "rows" else tuple(-(-size // TILE) * TILE for size in self.sizes)

    @property
    def m(self) -> int:
        return sum(self.places) + self.room

    def arrays(self) -> tuple[jax.Array, ...]:
        """Codes and scales, powers of two, of both operands."""
        keys = iter(jax.random.split(jax.random.key(0), 4))
        codes = lambda form, *shape: jax.random.normal(next(keys), shape).astype(form)
        scales = lambda *shape: 2.0 ** jax.random.randint(next(keys), shape, -3, 4)
        groups, steps = len(self.sizes), self.k // TILE
        if self.of == "rows":
            return (
                codes(self.form, self.m, self.k), scales(self.m, steps),
                codes(E4M3, groups, self.n, self.k), scales(groups, self.n // TILE, steps),
            )  # fmt: skip
        of_groups = [jnp.arange(place) < size for size, place in zip(self.sizes, self.places, strict=True)]
        there = jnp.concatenate([*of_groups, jnp.ones(self.room, bool)])[:, None]
        filled = lambda form, columns: jnp.where(there, codes("float32", self.m, columns), 0).astype(form)
        tiles = self.m // TILE
        return filled(E4M3, self.k), scales(tiles, self.k), filled(self.form, self.n), scales(tiles, self.n)

    def flops(self) -> float:
        return 2.0 * sum(self.sizes) * self.n * self.k

    def request(self, device: Target) -> Request:
        sides, groups = (self.m, self.n, self.k, TILE), len(self.sizes)
        forms = (self.form, E4M3) if self.of == "rows" else (E4M3, self.form)
        return Request(forms, *sides, dtype="bfloat16", groups=groups, squares=True, of=self.of, **device._asdict())


CHECKED = (
    Case("one row of tiles", (1,), 128, 128),
    Case("single rows of tiles", (1,) * 40, 128, 256),
    Case("empty groups of tiles", (0, 70, 0, 0, 3, 0), 256, 128, room=20),
    Case("all tiles in one group", (0, 0, 4096, 0), 512, 768, form=E5M2),
    Case("uneven groups of tiles", (1, 700, 5, 0, 129, 127, 1000, 64), 1024, 1408, room=300),
    Case("no tiles at all", (0, 0), 128, 128, room=200),
    Case("a long sum of tiles", (300, 17, 90), 384, 16384),
    Case("gradients of one row", (1,), 128, 128, of="weights"),
    Case("gradients of empty groups", (0, 70, 0, 0, 3, 0), 256, 128, room=TILE, of="weights"),
    Case("gradients of one group", (0, 0, 16384, 0), 512, 768, form=E5M2, of="weights"),
    Case("gradients of uneven groups", (1, 700, 5, 0, 129, 127, 1000, 64), 1024, 1408, room=3 * TILE, of="weights"),
    Case("gradients of no rows", (0, 0), 128, 256, room=TILE, of="weights"),
)
DRY = (
    Case("small groups of tiles", (3, 0, 20), 128, 128, room=4),
    Case("gradients of small groups", (3, 0, 20), 128, 128, room=TILE, of="weights"),
)
TIMED = (
    Case("DeepSeek-V3 up, 32 experts", (1024,) * 32, 2048, 7168),
    Case("Qwen3-30B up, 16 experts", (4096,) * 16, 768, 2048),
    Case("Mixtral up, 8 experts", (2048,) * 8, 14336, 4096),
    Case("DeepSeek-V3, gradient of up, 32 experts", (1024,) * 32, 2048, 7168, of="weights"),
    Case("Qwen3-30B, gradient of up, 16 experts", (4096,) * 16, 768, 2048, of="weights"),
    Case("Mixtral, gradient of up, 8 experts", (2048,) * 8, 14336, 4096, of="weights"),
)


def program(case: Case, name: str, interpret: bool = False) -> Callable[..., tuple[jax.Array]]:
    """`case.arrays` -> (product,) by an implementation; not jitted in the interpreter."""

    def run(left: jax.Array, left_scales: jax.Array, right: jax.Array, right_scales: jax.Array) -> tuple[jax.Array]:
        options: dict[str, Any] = {"implementation": name, "interpret": interpret, "numbers_by": "xla"}
        function = tiled_matmul if case.of == "rows" else tiled_weight_gradients
        return (function(left, left_scales, right, right_scales, jnp.array(case.places), **options),)

    return run if interpret else jax.jit(run)


def check(journal: Journal) -> None:
    """The kernels against float64."""
    for case in DRY if journal.dry else CHECKED:
        check_case(journal, case)


def check_case(journal: Journal, case: Case) -> None:
    """Adds the row of one case."""
    device = INTERPRETER if journal.dry else target()
    refused = REGISTRY["mosaic"].supports(case.request(device))
    check_codes(
        journal, KERNEL, case.name, case.arrays, Checked(refused, partial(program, case), partial(_float64, case))
    )


def _float64(case: Case, *arrays: jax.Array) -> np.ndarray:
    return _rows64(case, *arrays) if case.of == "rows" else _gradients64(case, *arrays)


def _gradients64(case: Case, *arrays: jax.Array) -> np.ndarray:
    rows, row_scales, d_out, d_out_scales = (np.asarray(x.astype(jnp.float32), np.float64) for x in arrays)
    rows, d_out = rows * row_scales.repeat(TILE, 0), d_out * d_out_scales.repeat(TILE, 0)
    ends = np.cumsum(case.places)
    owns = [slice(end - size, end) for end, size in zip(ends, case.places, strict=True)]
    return np.stack([rows[own].T @ d_out[own] for own in owns])


def _rows64(case: Case, *arrays: jax.Array) -> np.ndarray:
    rows, row_scales, weights, weight_scales = (np.asarray(x.astype(jnp.float32), np.float64) for x in arrays)
    rows, weights = rows * row_scales.repeat(TILE, 1), weights * weight_scales.repeat(TILE, 1).repeat(TILE, 2)
    out, begin = np.zeros((case.m, case.n)), 0
    for size, matrix in zip(case.sizes, weights, strict=True):
        out[begin : begin + size] = rows[begin : begin + size] @ matrix.T
        begin += size
    return out


def measure(journal: Journal) -> None:
    """TFLOP/s of the kernels, of plain XLA, and of the grouped matmul in bfloat16."""
    for case in DRY if journal.dry else TIMED:
        measure_codes(journal, case, _paths(case))


def _paths(case: Case) -> dict[str, Callable[..., jax.Array]]:
    def plain(rows: jax.Array, _: jax.Array, weights: jax.Array, __: jax.Array) -> jax.Array:
        wide = rows.astype(jnp.bfloat16), jnp.swapaxes(weights, 1, 2).astype(jnp.bfloat16)
        return grouped_matmul(*wide, jnp.array(case.sizes), implementation="mosaic")

    def plain_gradients(rows: jax.Array, _: jax.Array, d_out: jax.Array, __: jax.Array) -> jax.Array:
        wide = rows.astype(jnp.bfloat16), d_out.astype(jnp.bfloat16)
        device, sizes = target(), (rows.shape[0], len(case.places), rows.shape[1], d_out.shape[1])
        of_numbers.REGISTRY.choose("mosaic", of_numbers.Request(*sizes, dtype="bfloat16", **device._asdict()))
        return of_numbers.REGISTRY["mosaic"].of_weights(*wide, jnp.array(case.places))

    ours = lambda name: lambda *arrays: program(case, name)(*arrays)[0]
    wide = plain if case.of == "rows" else plain_gradients
    return {"mosaic": ours("mosaic"), "xla": ours("xla"), "mosaic bfloat16": wide}
