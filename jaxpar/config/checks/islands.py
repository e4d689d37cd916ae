"""Checks of the section `islands` and the axis of that name."""

from __future__ import annotations

from dataclasses import asdict

from jaxpar.config.checks.sizes import divides
from jaxpar.config.errors import UserError
from jaxpar.config.parts import OBJECTIVES
from jaxpar.config.reading.sections import rename_keys
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import Config
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.config.spelling import quoted

ALONE = ("quorum", "wait_s", "keep_rounds")
"""Keys of `islands` that only jobs read."""
TOGETHER = ("fragments", "delay", "mix", "eager", "offload")
"""Keys of `islands` that only islands of one job read."""


def check_islands(config: Config) -> None:
    """Refuse exchanges that do not fit their period, and what islands exclude."""
    islands, count = config.islands, config.parallel.islands
    if islands.every is None:
        if count != 1:
            raise UserError(
                f"islands.every: null, and parallel.islands is {count}; expected the steps between two exchanges with "
                "it, for example 100, or parallel.islands: 1"
            )
        usual = rename_keys("islands", asdict(IslandsConfig()))
        for key, asked in rename_keys("islands", asdict(islands)).items():
            if asked != usual[key]:
                raise UserError(f"islands.{key}: {spell(asked)} would not be used, because islands.every is null")
        return
    _check_eager(islands)
    _check_period(config, islands.every)
    _check_excluded(config)


def _check_period(config: Config, every: int) -> None:
    islands = config.islands
    first = every + islands.overlaps_step
    if first > config.run.steps:
        how = "eager: true" if islands.eager else f"delay: {islands.delay}"
        raise UserError(
            f"islands.every: {every} with islands.{how} updates all global weights in step {first} at "
            f"the earliest, which is more than run.steps ({config.run.steps})"
        )
    if islands.fragments > config.model.layers:
        raise UserError(
            f"islands.fragments: {islands.fragments} are more than the layers of the model ({config.model.layers}); "
            "expected at most as many"
        )
    divides("islands.every", every, "islands.fragments", islands.fragments)
    interval = every // islands.fragments
    if islands.delay >= every or islands.delay > interval:
        raise UserError(
            f"islands.delay: {islands.delay} steps, and the next exchange begins after {interval} (islands.every / "
            f"fragments); expected at most {min(interval, every - 1)}"
        )


def _check_eager(islands: IslandsConfig) -> None:
    for key in ("delay", "mix"):
        if islands.eager and (asked := getattr(islands, key)):
            raise UserError(
                f"islands.{key}: {spell(asked)} would not be used with islands.eager: true, which takes the outer "
                "gradients of the other islands a period later; expected 0"
            )


def _check_excluded(config: Config) -> None:
    excluded = {
        f"optimizer.ema: {config.optimizer.ema}": config.optimizer.ema is not None,
        f"memory.optimizer_offload: {config.memory.optimizer_offload}": config.memory.optimizer_offload != "none",
        f"data.source: {config.data.source}": OBJECTIVES[config.loss.name].rewards,
    }
    for what, asked in excluded.items():
        if asked:
            raise UserError(f"islands.every: {config.islands.every} excludes {what}; expected null, or another value")


def check_island_jobs(config: Config) -> None:
    """Refuse settings that an exchange through a folder does not read, and names that are no file in it."""
    islands, usual = config.islands, IslandsConfig()
    jobs = islands.folder is not None
    for key in TOGETHER if jobs else ALONE:
        if (value := getattr(islands, key)) != getattr(usual, key):
            beside = quoted(islands.folder) if islands.folder is not None else "null"
            raise UserError(
                f"islands.{key}: {spell(value)} would not be used, because islands.folder is {beside}; expected the "
                f"default, {spell(getattr(usual, key))}"
            )
    if not jobs:
        return
    if config.parallel.islands != 1:
        raise UserError(
            f"parallel.islands: {config.parallel.islands}, and each island is a separate job (islands.folder); "
            "expected 1"
        )
    name = config.run.name
    if name.startswith(".") or name.endswith(".json"):
        raise UserError(
            f"run.name: {quoted(name)} names an island, whose name neither begins with a dot nor ends with .json"
        )
