"""Norms of heads with rotary embeddings on the device: checks the kernels, and compares their time with XLA's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu.check import add_check, compared
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import compile_all, seconds_of, why_not
from pallas_kernels import norm_rotary
from pallas_kernels.device import INTERPRETER, Target, target
from pallas_kernels.norm_rotary import reference
from pallas_kernels.norm_rotary.registry import REGISTRY, Request

KERNEL = "norm_rotary/triton"
EPSILON = 1e-6
RESULTS = ("out", "d_x", "d_scale")


@dataclass(frozen=True)
class Case:
    """Heads of some tokens."""

    name: str
    tokens: int
    heads: int
    width: int
    dtype: str = "bfloat16"

    def arrays(self) -> tuple[jax.Array, ...]:
        """x, the norm's scale, cosines, sines, and the gradient of the result."""
        keys = jax.random.split(jax.random.key(0), 4)
        shape = (1, self.tokens, self.heads, self.width)
        draw = lambda key, *sizes: jax.random.normal(key, sizes, jnp.float32)
        angles = 20 * draw(keys[2], *shape[:2], self.width // 2)
        x, d_out = (draw(key, *shape).astype(self.dtype) for key in (keys[0], keys[3]))
        return x, 1 + 0.3 * draw(keys[1], self.width), jnp.cos(angles), jnp.sin(angles), d_out

    def bytes(self, way: str) -> int:
        """What one pass reads and writes: of the forward x and the result, of the backward the gradients too."""
        numbers = self.tokens * self.heads * self.width * jnp.dtype(self.dtype).itemsize
        return (2 if way == "forward" else 3) * numbers + 4 * self.tokens * self.width

    def request(self, device: Target) -> Request:
        return Request(self.tokens, self.heads, self.width, dtype=self.dtype, **device._asdict())


CHECKED = (
    Case("one row", 1, 1, 64),
    Case("nothing divides", 203, 13, 128),
    Case("halves of 40", 517, 12, 80),
    Case("halves of 48, float16", 130, 5, 96, "float16"),
    Case("192 wide", 1000, 8, 192),
    Case("256 wide, float32", 777, 3, 256, "float32"),
    Case("512 wide", 100, 2, 512),
    Case("many rows", 8192, 32, 128),
)
DRY = (Case("small", 21, 3, 64), Case("small, halves of 40", 9, 2, 80))
TIMED = (
    Case("queries, 32 x 128", 8192, 32, 128),
    Case("keys, 8 x 128", 8192, 8, 128),
    Case("queries, 16 x 256", 8192, 16, 256),
)
DRY_TIMED = (Case("small heads", 64, 2, 64),)


def program(case: Case, name: str, interpret: bool = False) -> tuple[Any, tuple[jax.Array, ...]]:
    """Result and gradients by an implementation, and the arrays that they are of."""
    run = partial(norm_rotary, epsilon=EPSILON, implementation=name, interpret=interpret)
    return _gradients(run), case.arrays()


def _gradients(run: Callable[..., jax.Array]) -> Any:
    def program(x: jax.Array, scale: jax.Array, cos: jax.Array, sin: jax.Array, d_out: jax.Array) -> tuple:
        out, pull = jax.vjp(lambda x, scale: run(x, scale, cos, sin), x, scale)
        return out, *pull(d_out)

    return jax.jit(program)


def check(journal: Journal) -> None:
    """The kernels' results against float64: at most twice the error of plain JAX."""
    for case in DRY if journal.dry else CHECKED:
        check_case(journal, case)


def check_case(journal: Journal, case: Case) -> None:
    """Adds the row of one case."""
    refused = REGISTRY["triton"].supports(case.request(INTERPRETER if journal.dry else target()))
    add_check(journal, KERNEL, case.name, refused, partial(_compare, case, journal.dry))


def _compare(case: Case, dry: bool) -> dict[str, Any]:
    run, arrays = program(case, "triton", dry)
    have, again = (jax.device_get(run(*arrays)) for _ in range(2))
    plain = jax.device_get(program(case, "xla")[0](*arrays))
    with jax.enable_x64(True):
        wide = [jnp.asarray(array, jnp.float64) for array in arrays]
        of_tokens = lambda x, scale, cos, sin: reference.forward(x[0], scale, cos[0], sin[0], epsilon=EPSILON)[None]
        wanted = jax.device_get(_gradients(of_tokens)(*wide))
    return compared(RESULTS, have, again, plain, wanted)


def measure(journal: Journal) -> None:
    """Bytes per second of forward and backward, of the fewest bytes that they need."""
    for case in DRY_TIMED if journal.dry else TIMED:
        if not journal.ended(case.name):
            journal.begin(case.name)
            _measure_case(journal, case)


def _measure_case(journal: Journal, case: Case) -> None:
    x, scale, cos, sin, d_out = case.arrays()
    flat = x[0], scale, cos[0], sin[0]
    programs = {}
    for name in ("triton", "xla"):
        entry, options = REGISTRY[name], {"epsilon": EPSILON, "interpret": journal.dry}
        programs[name, "forward"] = jax.jit(partial(entry.forward, **options)), flat
        programs[name, "backward"] = jax.jit(partial(entry.backward, **options)), (*flat, d_out[0])
    lowered = {key: (lambda f=f, of=of: f.lower(*of)) for key, (f, of) in programs.items()}
    compiled = compile_all(journal, case.name, lowered)
    row = {"case": case.name, "tokens": case.tokens, "heads": case.heads, "width": case.width}
    calls = {}
    for (name, way), found in compiled.items():
        if isinstance(found, Exception):
            journal.add("norm_rotary", **row, by=name, way=way, **why_not(found))
        else:
            calls[name, way] = lambda found=found, of=programs[name, way][1]: found(*of)
    for (name, way), seconds in seconds_of(calls, 2 if journal.dry else 5).items():
        rate = case.bytes(way) / seconds["seconds"]
        journal.add("norm_rotary", **row, by=name, way=way, bytes_per_second=rate, **seconds)
