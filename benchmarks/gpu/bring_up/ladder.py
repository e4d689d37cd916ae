"""The rungs that each kernel climbs: its cases from one tile up, by the processors of the GPU at hand."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from benchmarks.gpu import attention, grouped, linear_attention, tiled
from benchmarks.gpu.attention_cases import CHECKED, Case
from benchmarks.gpu.journal import Journal
from pallas_kernels.attention.registry import REGISTRY

RUNGS = ("one tile", "one wave", "three tiles a processor", "the grid")
"""A wave is a tile for each multiprocessor: the most that runs before a program of a persistent grid takes a second
tile. Three tiles a processor wrap every ring of buffers around."""
WIDTHS = (64, 96, 128, 192, 256)
_ROW = 1024
"""Tokens of the rows of waves: eight tiles."""

type Run = tuple[Any, tuple[str, ...]]
"""A call without arguments, and the names of its results."""


@dataclass(frozen=True)
class Kernel:
    """How a kernel is tried."""

    name: str
    """As in `pallas_kernels.verified.SOURCES`."""
    launches: tuple[str, ...]
    """Parts of the names of what it launches, which nothing else has that runs beside it."""
    cases: Callable[[int, bool], Mapping[str, Sequence[Any]]]
    """By rung, of so many processors; tiny ones for a dry run."""
    label: Callable[[Any], str]
    check: Callable[[Journal, Sequence[Any]], None]
    """Adds a `check` row of each of some cases, which run twice."""
    repeat: Callable[[Any, bool], Run]
    """A launch of the case, forward and backward."""
    varies: tuple[str, ...] = ()
    """Results that are not the same bits in every run."""
    together: int = 1
    """Cases that `check` takes at a time, and compiles side by side."""
    sort: Callable[[Any], Hashable] = lambda case: None
    """What decides which program a case runs: one of each sort is launched thousands of times."""


def _attention_cases(processors: int, dry: bool) -> Mapping[str, Sequence[Case]]:
    if dry:
        return {RUNGS[0]: [Case("dry", 72, 64, 2, 1, packed=30)]}

    def of(seq: int, heads: int, width: int, **mask: Any) -> Case:
        kind = ", ".join(mask) or "causal"
        values = 128 if width == 192 else None
        return Case(f"{seq} x {heads}, {kind}, {width}", seq, width, heads, heads, value_width=values, **mask)

    tiles = _ROW // 128
    wave, three = max(1, processors // tiles), -(-3 * processors // tiles)
    return {
        "one tile": [of(128, 1, width, **mask) for width in WIDTHS for mask in ({}, {"packed": 40})],
        "one wave": [*(of(_ROW, wave, width) for width in WIDTHS), of(_ROW, wave, 128, packed=200)],
        "three tiles a processor": [
            *(of(_ROW, three, width) for width in WIDTHS),
            *(of(_ROW, three, width, packed=200) for width in (64, 128)),
        ],
        "the grid": CHECKED,
    }


def _attention(name: str, *launches: str) -> Kernel:
    def repeat(case: Case, dry: bool) -> Run:
        arrays = case.arrays()
        program = attention.gradients(case, name, True, arrays, interpret=dry)().compile()
        return (lambda: program(*arrays)), attention.RESULTS

    return Kernel(
        f"attention/{name}",
        ("attention_forward", *launches),
        _attention_cases,
        lambda case: case.name,
        lambda journal, cases: attention.check_some(journal, REGISTRY[name], cases),
        repeat,
        attention.VARYING.get(name, ()),
        attention.TOGETHER,
        lambda case: case.width,
    )


def _each(check: Callable[[Journal, Any], None]) -> Callable[[Journal, Sequence[Any]], None]:
    def run(journal: Journal, cases: Sequence[Any]) -> None:
        for case in cases:
            check(journal, case)

    return run


def _grouped_cases(processors: int, dry: bool) -> Mapping[str, Sequence[grouped.Case]]:
    if dry:
        return {RUNGS[0]: grouped.DRY}
    wave = 128 * max(1, processors // 2)  # two tiles of columns
    return {
        "one tile": [
            grouped.Case("one tile", (128,), 64, 128),
            grouped.Case("some of a tile", (77,), 128, 128),
        ],
        "one wave": [grouped.Case("one wave", (wave // 2, wave // 2), 256, 512)],
        "three tiles a processor": [
            grouped.Case("three waves", (wave, 0, 2 * wave - 100, 300), 512, 512, room=50),
        ],
        "the grid": grouped.CHECKED,
    }


def _grouped(name: str) -> Kernel:
    def repeat(case: grouped.Case, dry: bool) -> Run:
        run, arrays = grouped.program(case, name, dry), case.arrays()
        return (lambda: run(*arrays)), grouped.RESULTS

    check = _each(lambda journal, case: grouped.check_case(journal, case, name))
    label = lambda case: case.name
    return Kernel(f"grouped_matmul/{name}", ("grouped_matmul_",), _grouped_cases, label, check, repeat)


def _tiled_cases(processors: int, dry: bool) -> Mapping[str, Sequence[tiled.Case]]:
    if dry:
        return {RUNGS[0]: tiled.DRY[tiled.DENSE]}
    wave = 128 * max(1, processors // 2)  # two tiles of columns
    return {
        "one tile": [
            tiled.Case("one tile", 128, 128, 128),
            tiled.Case("one tile of two pieces", 128, 256, 128),
            tiled.Case("two pieces, float32", 128, 256, 1024, squares=False, dtype="float32"),
        ],
        "one wave": [tiled.Case("one wave", wave, 512, 1024)],
        "three tiles a processor": [tiled.Case("three waves", 3 * wave, 512, 1024, squares=False)],
        "the grid": tiled.CHECKED[tiled.DENSE],
    }


def _grouped_tiled_cases(processors: int, dry: bool) -> Mapping[str, Sequence[tiled.Case]]:
    if dry:
        return {RUNGS[0]: tiled.DRY[tiled.GROUPED]}
    wave = 128 * max(1, processors // 2)  # two tiles of columns
    side = 128 * max(1, processors // 4)  # of matrices whose gradients are a wave: two groups, two tiles of columns
    return {
        "one tile": [
            tiled.Case("one tile", (128,), 128, 128),
            tiled.Case("some of a tile of two pieces", (77,), 256, 1024, room=20),
            tiled.Case("one tile of gradients", (128,), 128, 128, of="weights"),
            tiled.Case("a long tile of gradients", (1000,), 256, 128, of="weights"),
        ],
        "one wave": [
            tiled.Case("one wave", (wave // 2, wave // 2), 512, 1024),
            tiled.Case("one wave of gradients", (300, 500), 512, side, of="weights"),
        ],
        "three tiles a processor": [
            tiled.Case("three waves", (wave, 0, 2 * wave - 100, 300), 512, 1024, room=50),
            tiled.Case("three waves of gradients", (300, 1000, 0, 77, 700, 1), 512, side, of="weights"),
        ],
        "the grid": tiled.CHECKED[tiled.GROUPED],
    }


def _linear_cases(processors: int, dry: bool) -> Mapping[str, Sequence[linear_attention.Case]]:
    if dry:
        return {RUNGS[0]: linear_attention.DRY}
    case = partial(linear_attention.Case, key=128, value=64, by_key=False)
    return {
        "one tile": [
            case("one program, a chunk", 1, 64, 1, delta=False),
            case("one program, a chunk by the delta rule", 1, 64, 1, delta=True),
            case("one program, ten chunks", 1, 640, 1, delta=True),
        ],
        "one wave": [case("one wave", 1, 256, processors, delta=True)],
        "three tiles a processor": [case("three waves", 3, 256, processors, delta=True)],
        "the grid": linear_attention.CHECKED,
    }


def _repeat_linear(case: linear_attention.Case, dry: bool) -> Run:
    run, arrays = linear_attention.program(case, "mosaic", dry), case.arrays()
    return (lambda: run(*arrays)), case.results


def _repeat_tiled(case: tiled.Case, dry: bool) -> Run:
    run, arrays = tiled.program(case, "mosaic", dry), case.arrays()
    return (lambda: run(*arrays)), tiled.RESULTS


def _tiled(kernel: str, cases: Callable[[int, bool], Mapping[str, Sequence[tiled.Case]]]) -> Kernel:
    label, check = lambda case: case.name, _each(tiled.check_case)
    return Kernel(kernel, ("tiled_matmul_",), cases, label, check, _repeat_tiled, sort=lambda case: case.of)


KERNELS = (
    _attention("mosaic", "attention_key_gradients"),
    _attention("mosaic_deterministic", "attention_key_gradients", "attention_query_gradients"),
    _attention("triton", "attention_dq", "attention_dkv"),
    *map(_grouped, grouped.KERNELS),
    _tiled(tiled.DENSE, _tiled_cases),
    _tiled(tiled.GROUPED, _grouped_tiled_cases),
    Kernel(
        linear_attention.KERNEL,
        ("linear_attention_",),
        _linear_cases,
        lambda case: case.name,
        _each(linear_attention.check_case),
        _repeat_linear,
        sort=lambda case: str(case.delta),
    ),
)


def kernel(name: str) -> Kernel:
    """The entry called `name`."""
    (found,) = (one for one in KERNELS if one.name == name)
    return found


@jax.jit
def differing(first: Sequence[jax.Array], again: Sequence[jax.Array]) -> list[jax.Array]:
    """Of each result, whether its bytes differ."""
    unsigned = {2: "uint16", 4: "uint32"}
    bits = lambda x: jax.lax.bitcast_convert_type(x, unsigned[x.dtype.itemsize])
    return [(bits(a) != bits(b)).any() for a, b in zip(first, again, strict=True)]
