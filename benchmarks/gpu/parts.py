"""The parts of the suite, in order of importance, and the time of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu.journal import Journal

SECONDS = 465
"""Seconds of the whole suite: 8 minutes, less what the last part may overrun."""


@dataclass(frozen=True)
class Part:
    """Runs in a process of its own, so that a broken kernel cannot damage the context of other parts."""

    name: str
    seconds: float
    """Limit of the part if the suite has `SECONDS`, scaled otherwise; unused time goes to later parts."""
    run: Callable[[Journal], None]
    flags: Callable[[], tuple[str, ...]] = tuple
    """XLA flags of its process beside those of a run."""


def _check_attention(name: str) -> Callable[[Journal], None]:
    def run(journal: Journal) -> None:
        from benchmarks.gpu import attention

        attention.check(journal, name)

    return run


def _attention(journal: Journal) -> None:
    from benchmarks.gpu import attention

    attention.measure(journal)


def _check_grouped(journal: Journal) -> None:
    from benchmarks.gpu import grouped

    grouped.check(journal)


def _grouped(journal: Journal) -> None:
    from benchmarks.gpu import grouped

    grouped.measure(journal)


def _check_linear(journal: Journal) -> None:
    from benchmarks.gpu import linear_attention

    linear_attention.check(journal)


def _linear(journal: Journal) -> None:
    from benchmarks.gpu import linear_attention

    linear_attention.measure(journal)


def _check_tiled(journal: Journal) -> None:
    from benchmarks.gpu import tiled

    tiled.check(journal)


def _tiled(journal: Journal) -> None:
    from benchmarks.gpu import tiled

    tiled.measure(journal)


def _step(journal: Journal) -> None:
    from benchmarks.gpu import training

    training.step(journal)


def _triton(journal: Journal) -> None:
    from benchmarks.gpu import training

    training.triton_step(journal)


def _triton_flags() -> tuple[str, ...]:
    from benchmarks.gpu import training

    return training.triton_flags()


def _recipes(journal: Journal) -> None:
    from benchmarks.gpu import training

    training.recipes(journal)


def _recipes_of_1_3b(journal: Journal) -> None:
    from benchmarks.gpu import training

    training.recipes_of_1_3b(journal)


def _torch_recipes(journal: Journal) -> None:
    from benchmarks.gpu import torch_recipes

    torch_recipes.measure(journal)


def _bits(journal: Journal) -> None:
    from benchmarks.gpu import training

    training.same_bits(journal)


def _tier(offload: str) -> Callable[[Journal], None]:
    def run(journal: Journal) -> None:
        from benchmarks.gpu import training

        training.tier(journal, offload)

    return run


def _generation(journal: Journal) -> None:
    from benchmarks.gpu import generation

    generation.generate(journal)


def _rings(journal: Journal) -> None:
    from benchmarks.gpu import rings

    rings.measure(journal)


def _tiles(journal: Journal) -> None:
    from benchmarks.gpu import tiles

    tiles.measure(journal)


PARTS = (
    Part("check-mosaic", 90, _check_attention("mosaic")),
    Part("check-triton", 70, _check_attention("triton")),
    Part("check-mosaic-deterministic", 80, _check_attention("mosaic_deterministic")),
    Part("check-grouped", 30, _check_grouped),
    Part("check-tiled", 35, _check_tiled),
    Part("check-linear", 30, _check_linear),
    Part("attention", 130, _attention),
    Part("grouped", 45, _grouped),
    Part("tiled", 45, _tiled),
    Part("linear", 45, _linear),
    Part("check-cudnn", 25, _check_attention("cudnn")),
    Part("step", 60, _step),
    Part("triton", 90, _triton, _triton_flags),
    Part("rings", 45, _rings),
    Part("fp8", 120, _recipes),
    Part("generation", 60, _generation),
    Part("bits", 45, _bits),
    Part("memory-device", 70, _tier("none")),
    Part("memory-host", 110, _tier("host")),
    Part("fp8-1.3b", 120, _recipes_of_1_3b),
    Part("fp8-torch", 150, _torch_recipes),
    Part("tiles", 400, _tiles),
)
"""Their limits add up to more than the whole: the last parts get the remaining time."""
