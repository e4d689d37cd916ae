"""Checks of islands that are separate jobs."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import Config
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.config.spelling import quoted

ALONE = ("quorum", "wait_s", "keep_rounds")
"""Keys of `islands` that only jobs read."""
TOGETHER = ("fragments", "delay", "mix", "eager", "offload")
"""Keys of `islands` that only islands of one job read."""


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
