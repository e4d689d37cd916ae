"""Settings that have no effect because of another one: an error in one file, reset with a warning by an override."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from jaxpar.config.parts import OBJECTIVES, OPTIMIZERS
from jaxpar.config.reading.sections import SECTIONS, Written
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import Config
from jaxpar.config.spelling import one_of


@dataclass(frozen=True)
class _Owner:
    """A setting, and the keys of its section that only some of its values use."""

    section: str
    key: str
    prefixes: tuple[str, ...]
    """How the keys begin."""
    used: Callable[[Any], bool]
    needed: str
    """The value that uses them, in words."""
    also: Callable[[Config], bool] = lambda config: False
    """Whether the rest of the configuration uses them with any other value."""


_OWNERS = (
    _Owner("optimizer", "schedule", ("decay_fraction",), lambda shape: shape == "wsd", "wsd"),
    _Owner(
        "optimizer", "schedule", ("final_fraction",), lambda schedule: schedule != "constant", "cosine, linear or wsd"
    ),
    _Owner("attention", "backend", ("query_block", "kv_block"), lambda name: name in ("xla", "auto"), "xla"),
    _Owner("precision", "matmul", ("matmul_options",), lambda recipe: recipe is not None, "a recipe"),
    _Owner("evaluation", "sample_tokens", ("sample_temperature",), lambda tokens: tokens > 0, "above 0"),
    *(
        _Owner("loss", "name", (key,), lambda name, key=key: key in OBJECTIVES[name].keys, objective)
        for objective, entry in OBJECTIVES.items()
        for key in entry.keys
    ),
    _Owner("lora", "rank", ("alpha", "targets"), lambda rank: rank is not None, "a number"),
    _Owner("watch", "on_spike", ("skip_batches", "max_rollbacks"), lambda what: what == "rollback", "rollback"),
)


def _optimizer_keys() -> Iterator[_Owner]:
    """The keys that only some optimizers read; `options` is none of those of `OptimizerConfig` that all read."""
    for key in dict.fromkeys(("options", *(key for one in OPTIMIZERS.values() for key in one.keys))):
        readers = [name for name, one in OPTIMIZERS.items() if key in one.keys]
        needed = one_of(readers) if readers else "one that has options"
        yield _Owner("optimizer", "name", (key,), readers.__contains__, needed)


@dataclass(frozen=True)
class Unused:
    """A key that differs from its default and is not used."""

    section: str
    key: str
    value: Any
    default: Any
    owner: str
    """The key of the same section that decides whether it is used."""
    chosen: Any
    """Its value."""
    needed: str

    def __str__(self) -> str:
        return (
            f"{self.section}.{self.key}: {spell(self.value)} would not be used, because {self.section}.{self.owner} is "
            f"{spell(self.chosen)}; expected {self.section}.{self.owner}: {self.needed} with it, or the default, "
            f"{spell(self.default)}"
        )


def unused_settings(config: Config) -> Iterator[Unused]:
    """All keys that differ from their defaults and are not used."""
    for owner in (*_optimizer_keys(), *_OWNERS):
        section, usual = getattr(config, owner.section), SECTIONS[owner.section]()
        chosen = getattr(section, owner.key)
        if owner.used(chosen) or owner.also(config):
            continue
        for name in (field.name for field in fields(section) if field.name.startswith(owner.prefixes)):
            value, default = getattr(section, name), getattr(usual, name)
            if value != default:
                yield Unused(owner.section, name, value, default, owner.key, chosen, owner.needed)


def without_unused(config: Config, given: Written) -> Config:
    """`config` with defaults for the keys that overrides have made unused, and a warning for each: a file for Muon can
    run with `optimizer.name=adamw`. Keys that are unused within one file or the overrides stay, for `validate`."""
    for found in unused_settings(config):
        overridden = given.get(found.section, {})
        if found.owner in overridden and found.key not in overridden:
            warnings.warn(
                f"{found.section}.{found.key}: {spell(found.value)} is not used under the override "
                f"{found.section}.{found.owner}={spell(found.chosen)}",
                stacklevel=3,
            )
            section = replace(getattr(config, found.section), **{found.key: found.default})
            config = replace(config, **{found.section: section})
    return config
