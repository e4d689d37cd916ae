"""Times the entries of the tile tables and their neighbours, on this device.

It prints the best tile of each entry.
Enter a faster tile into the table by hand. This changes the sources, so the records of the kernel expire, and
`--record` has to check it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.gpu.attention_cases import Case
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.programs import compile_all, seconds_of, sentence
from pallas_kernels.attention import MaskInputs, Settings, mosaic, triton
from pallas_kernels.attention.mosaic.forward import ForwardTiles
from pallas_kernels.attention.mosaic.tiles import tiles as mosaic_tiles
from pallas_kernels.attention.triton.tiles import Tile, widths
from pallas_kernels.attention.triton.tiles import tiles as triton_tiles

DRY = Case("packed", 48, 64, 2, 1, packed=20)
ROUNDS = 3


class Launch(NamedTuple):
    """One kernel of one family, as an entry of its table has it."""

    kernel: str
    name: str
    entry: Any
    neighbours: list[Any]
    program: Callable[[Any], Callable[..., Any]]
    """By a candidate: (q, k, v, d_out, lse) -> what the launch computes, and perhaps others beside it."""


def cases() -> tuple[Case, ...]:
    """16k tokens of each width under each kind of mask, the widths that models have most first."""
    sizes = sorted(widths(), key=lambda of: (128, 64, 96, 256, 192).index(of[0]))
    masks: dict[str, dict[str, Any]] = {
        "causal": {}, "packed": {"packed": 1024}, "window": {"window": 1024}, "full": {"causal": False},
    }  # fmt: skip
    return tuple(
        Case(name, 8192, wide, 2048 // wide, 2048 // wide, batch=2, value_width=value, **mask)
        for wide, value in sizes
        for name, mask in masks.items()
    )


def measure(journal: Journal) -> None:
    """Milliseconds of each entry and of its neighbours, one after the other in turns."""
    for case in (DRY,) if journal.dry else cases():
        segments = case.segments()
        indices = jnp.broadcast_to(jnp.arange(case.seq, dtype=jnp.int32), (case.batch, case.seq))
        given = None if segments is None else jnp.asarray(segments)
        settings = Settings(case.mask, case.width**-0.5, neighbours=True, results="inputs", interpret=journal.dry)
        for launch in launches(case, settings, MaskInputs(indices, indices, given, given)):
            what = f"{launch.kernel}, {launch.name}, width {case.width}, {case.name}"
            if journal.has_time(what, 10):
                _time(journal, case, launch, what)


def launches(case: Case, settings: Settings, tokens: MaskInputs) -> Iterator[Launch]:
    """The kernels that support the case, each with the neighbours of its entry."""
    request = case.request(lse=True, interpret=settings.interpret)
    sizes = case.width, case.width if case.value_width is None else case.value_width
    if triton.refusal(request) is None:
        table = triton_tiles(*sizes, request.compute_capability, case.mask.kind)
        some = 1 if settings.interpret else None
        forward = lambda tile: partial(_forward, partial(triton.forward, tile=tile), settings, tokens)
        yield Launch("triton", "forward", table.forward, of_triton(table.forward)[:some], forward)
        for name in ("dq",) if settings.interpret else ("dq", "dkv"):
            backward = lambda tile, name=name: partial(
                _backward, partial(triton.backward, tiles=table._replace(**{name: tile})), settings, tokens
            )
            entry = getattr(table, name)
            yield Launch("triton", name, entry, of_triton(entry)[:some], backward)
    if not settings.interpret and mosaic.refusal(request) is None:
        tiles = mosaic_tiles(*sizes, case.softcap)
        for name, entry in tiles._asdict().items():
            if entry is not None:
                yield _of_mosaic(name, entry, tiles, settings, tokens)


def _of_mosaic(name: str, entry: Any, tiles: Any, settings: Settings, tokens: MaskInputs) -> Launch:
    def program(candidate: Any) -> Callable[..., Any]:
        chosen = tiles._replace(**{name: candidate})
        if name == "forward":
            return partial(_forward, partial(mosaic.forward, tiles=chosen), settings, tokens)
        kernel = partial(mosaic.backward, tiles=chosen, deterministic=name != "fused")
        return partial(_backward, kernel, settings, tokens)

    return Launch("mosaic", name, entry, of_mosaic(entry), program)


def of_triton(tile: Tile) -> list[Tile]:
    """Tiles that differ from this one in one thing, by one step."""
    doubled = [tile._replace(**{side: getattr(tile, side) * 2}) for side in ("queries", "keys")]
    halved = [tile._replace(**{side: getattr(tile, side) // 2}) for side in ("queries", "keys")]
    others = [tile._replace(warps=12 - tile.warps), *(tile._replace(stages=tile.stages + by) for by in (-1, 1))]
    fits = lambda one: 16 <= one.queries <= 256 and 16 <= one.keys <= 256 and one.stages > 0
    return [one for one in (*halved, *doubled, *others) if fits(one)]


def of_mosaic(entry: Any) -> list[Any]:
    """The same for an entry of the Hopper tables; if it covers several launches, all of them change together."""
    if isinstance(entry, tuple):
        changed = [of_mosaic(cut) for _, cut in entry]
        return [
            tuple((name, cut) for (name, _), cut in zip(entry, cuts, strict=True))
            for cuts in zip(*changed, strict=True)
        ]
    side = "queries" if any(field.name == "queries" for field in fields(entry)) else "keys"
    size = getattr(entry, side)
    # A block of queries is 32, 64 or 128 long, one of keys a multiple of 64 (or 32).
    sizes = {size // 2, 2 * size} & {32, 64, 128} if side == "queries" else {size // 2, size - 64, size + 64}
    wider = [replace(entry, **{side: new}) for new in sorted(sizes) if 32 <= new != size]
    unique = {getattr(one, side): one for one in wider}
    deeper = [replace(entry, stages=entry.stages + by) for by in (-1, 1) if entry.stages + by > 0]
    if isinstance(entry, ForwardTiles):  # with one product in flight, or with two
        deeper.append(replace(entry, overlapped="all" if entry.overlapped == "none" else "none"))
    return [*unique.values(), *deeper]


def _forward(kernel: Callable, settings: Settings, tokens: MaskInputs, q, k, v, d_out, lse) -> Any:
    del d_out, lse
    return kernel(settings, q, k, v, tokens)


def _backward(kernel: Callable, settings: Settings, tokens: MaskInputs, q, k, v, d_out, lse) -> Any:
    return kernel(settings, q, k, v, tokens, lse, jnp.zeros_like(lse), d_out)


def _time(journal: Journal, case: Case, launch: Launch, what: str) -> None:
    q, k, v, d_out, _ = case.arrays()
    arrays = q, k, v, d_out, jnp.full(q.shape[:3], 8.0)  # close enough to a log-sum-exp that nothing overflows
    candidates = [launch.entry, *launch.neighbours]
    jitted = [jax.jit(launch.program(candidate)) for candidate in candidates]
    compiled = compile_all(journal, what, {n: partial(one.lower, *arrays) for n, one in enumerate(jitted)})
    row = {"kernel": launch.kernel, "launch": launch.name, "width": case.width, "mask": case.name}
    working: dict[int, Callable[[], Any]] = {}
    for n, program in compiled.items():
        try:
            if isinstance(program, Exception):
                raise program
            jax.block_until_ready(program(*arrays))
            working[n] = partial(program, *arrays)
        except Exception as error:  # a neighbour may not fit on the device
            refusal = {"failed" if n == 0 else "refused": sentence(error)}
            journal.add("tile", **row, tile=_text_of(candidates[n]), entry=n == 0, **refusal)
    if 0 not in working:
        journal.skip(what, "the table's own entry does not run")
        return
    found = seconds_of(working, 2 if journal.dry else ROUNDS)
    best = min(found, key=lambda n: found[n]["seconds"])
    for n, seconds in found.items():
        more = {"entry": n == 0, "best": n == best, "of_entry": seconds["seconds"] / found[0]["seconds"]}
        journal.add("tile", **row, tile=_text_of(candidates[n]), **more, **seconds)


def _text_of(candidate: Any) -> str:
    return str(candidate)
