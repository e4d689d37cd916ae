"""What it costs to multiply in the chunks of a ring (`jaxpar.mesh.collective_matmul`) what fits one product.

On one GPU: the products of one rank of `ranks` tensor ranks, forward and backward, in as many chunks as its rings have,
beside whole products of the same shapes. What a ring sends, and adding to what arrives, is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
from jax.sharding import PartitionSpec as P

from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import compile_all, seconds_of, why_not
from jaxpar.config.plan import AxisSizes
from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.build import build_mesh, mapped
from jaxpar.mesh.collective_matmul import (
    gather_matmul,
    gathered_gradients,
    gathered_products,
    matmul_scatter,
    scattered_gradients,
    scattered_products,
)
from jaxpar.mesh.rings import Perturbed

CHUNKS = (2, 4)
"""Of a rank's part."""
WAYS = ("forward", "backward")


@dataclass(frozen=True)
class Case:
    """A group of matmuls of a layer, as one of `ranks` tensor ranks has it."""

    name: str
    ranks: int
    tokens: int
    """Of all ranks."""
    embed: int
    widths: tuple[int, ...]
    """Columns of the matrices on all ranks, of which one has a part."""
    kind: Literal["gather", "scatter"]
    dtype: str = "bfloat16"

    def arrays(self) -> tuple[jax.Array, tuple[jax.Array, ...], Any]:
        """Input, matrices, and the gradient of the output."""
        keys = iter(jax.random.split(jax.random.key(0), 3 + 2 * len(self.widths)))
        normal = lambda *shape: jax.random.normal(next(keys), shape, self.dtype)
        own = [width // self.ranks for width in self.widths]
        of_embed, of_widths = normal(1, self.tokens, self.embed), tuple(normal(1, self.tokens, n) for n in own)
        if self.kind == "gather":
            return of_embed, tuple(normal(self.embed, n) for n in own), of_widths
        return of_widths[0], (normal(own[0], self.embed),), of_embed

    def program(self, chunks: int | None, way: str) -> Callable[..., Any]:
        """Of `arrays`; in so many chunks of each rank's part, or whole."""
        products, gradients = self._whole() if chunks is None else self._cut(self.ranks * chunks)

        def run(*arrays: Any) -> Any:
            x, weights, dy = vary(arrays)
            return products(x, weights) if way == "forward" else gradients(x, weights, dy)

        return jax.jit(mapped(run, build_mesh(AxisSizes(), jax.devices()[:1]), self.dtype, (P(), P(), P()), P(AXES)))

    def _whole(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Products and their gradients, those of the weights in float32."""

        def products(x: jax.Array, weights: Sequence[jax.Array]) -> Any:
            if self.kind == "gather":
                return gather_matmul(x, weights)
            return matmul_scatter([x], weights)

        def gradients(x: jax.Array, weights: Sequence[jax.Array], dy: Any) -> Any:
            return jax.vjp(products, x, [w.astype("float32") for w in weights])[1](dy)

        return products, gradients

    def _cut(self, chunks: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The same in so many chunks."""
        perturbed = Perturbed(True, (True,) * len(self.widths))
        if self.kind == "gather":
            return (
                lambda x, weights: gathered_products(chunks, x, weights, self.dtype),
                lambda x, weights, dy: gathered_gradients(chunks, perturbed, x, weights, list(dy), self.dtype),
            )
        return (
            lambda x, weights: scattered_products(chunks, [x], weights, self.dtype),
            lambda x, weights, dy: scattered_gradients(chunks, perturbed, [x], weights, dy, self.dtype),
        )


TIMED = tuple(
    case
    for ranks in (2, 8)
    for case in (
        Case(f"llama3-8b up and gate, tensor {ranks}", ranks, 8192, 4096, (14336, 14336), "gather"),
        Case(f"llama3-8b down, tensor {ranks}", ranks, 8192, 4096, (14336,), "scatter"),
    )
)
DRY = (
    Case("up and gate", 2, 32, 16, (32, 32), "gather", "float32"),
    Case("down", 2, 32, 16, (32,), "scatter", "float32"),
)


def measure(journal: Journal) -> None:
    """Seconds of the whole products and of those in chunks, in turns."""
    for case in DRY if journal.dry else TIMED:
        if not journal.has_time(case.name, 10):
            continue
        journal.begin(case.name)
        _measure_case(journal, case)


def _measure_case(journal: Journal, case: Case) -> None:
    arrays = case.arrays()
    each = (None, *(CHUNKS[:1] if journal.dry else CHUNKS))
    lowered = {(chunks, way): partial(case.program(chunks, way).lower, *arrays) for chunks in each for way in WAYS}
    ready: dict[str, dict[int | None, Callable[[], Any]]] = {way: {} for way in WAYS}
    for (chunks, way), compiled in compile_all(journal, case.name, lowered).items():
        if isinstance(compiled, Exception):
            journal.add("ring", case=case.name, chunks=chunks, way=way, **why_not(compiled))
        else:
            ready[way][chunks] = partial(compiled, *arrays)
    for way, calls in ready.items():
        times = seconds_of(calls, 2 if journal.dry else 7) if calls else {}
        whole = times[None]["seconds"] if None in times else None
        for chunks, seconds in times.items():
            of_whole = {} if whole is None else {"of_whole": seconds["seconds"] / whole}
            journal.add("ring", case=case.name, chunks=chunks, way=way, **of_whole, **seconds)
