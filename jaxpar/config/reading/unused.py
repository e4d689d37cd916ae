"""Settings that have no effect because of another one: an error in one file, reset with a warning by an override."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from jaxpar.config.mappings.matmul import OF_TILES, WITH_HISTORY
from jaxpar.config.parts import OBJECTIVES, OPTIMIZERS
from jaxpar.config.reading.options import readers, record_of, same_option
from jaxpar.config.reading.sections import SECTIONS, Written, rename_keys, with_values
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import Config, OptimizerConfig
from jaxpar.config.spelling import join_or


@dataclass(frozen=True)
class _Owner:
    """A setting, and the keys of its section that only some of its values use."""

    section: str
    key: str
    keys: tuple[str, ...]
    """The keys; a member of a mapping is `mapping.member`."""
    used: Callable[[Any], bool]
    needed: str
    """The value that uses them, in words."""
    also: Callable[[Config], bool] = lambda config: False
    """Whether the rest of the configuration uses them with any other value."""


def _multiplies_experts(config: Config) -> bool:
    """Whether `matmul_options.backend` names kernels of experts' matmuls, with which other recipes run too."""
    model = config.model
    experts = any([model.experts, *(kind.get("experts") for kind in model.kinds.values())])
    return experts and config.precision.matmul_options.backend != "cudnn"


def _readers(key: str) -> list[str]:
    """The objectives that read a key of `loss`."""
    return [name for name, entry in OBJECTIVES.items() if key in entry.keys]


_OWNERS = (
    _Owner("optimizer", "schedule", ("decay_fraction",), lambda shape: shape == "wsd", "wsd"),
    _Owner(
        "optimizer", "schedule", ("final_fraction",), lambda schedule: schedule != "constant", "cosine, linear or wsd"
    ),
    _Owner("attention", "backend", ("query_block", "kv_block"), lambda name: name in ("xla", "auto"), "xla"),
    _Owner(
        "optimizer",
        "name",
        ("matrix_learning_rate",),
        lambda name: OPTIMIZERS[name].matrix_rate,
        join_or(name for name, one in OPTIMIZERS.items() if one.matrix_rate),
    ),
    _Owner("precision", "matmul", ("matmul_options",), lambda recipe: recipe is not None, "a recipe"),
    _Owner(
        "precision",
        "matmul",
        ("matmul_options.history",),
        lambda recipe: recipe in (None, *WITH_HISTORY),
        join_or(WITH_HISTORY),
    ),
    _Owner(
        "precision",
        "matmul",
        ("matmul_options.backend",),
        lambda recipe: recipe in (None, *OF_TILES),
        join_or(OF_TILES),
        also=_multiplies_experts,
    ),
    *(
        _Owner("loss", "name", (key,), lambda name, key=key: key in OBJECTIVES[name].keys, join_or(_readers(key)))
        for key in dict.fromkeys(key for entry in OBJECTIVES.values() for key in entry.keys)
    ),
    _Owner("lora", "rank", ("alpha", "targets"), lambda rank: rank is not None, "a number"),
    _Owner("watch", "on_spike", ("skip_batches", "max_rollbacks"), lambda what: what == "rollback", "rollback"),
)


@dataclass(frozen=True)
class Unused:
    """A key that differs from its default and is not used."""

    section: str
    key: str
    """The key; a member of a mapping is `mapping.member`."""
    value: Any
    default: Any
    owner: str
    """The key of the same section that decides whether it is used."""
    chosen: Any
    """The value of that key."""
    needed: str

    def __str__(self) -> str:
        option = self.key.startswith("options.")
        return (
            f"{self.section}.{self.key}: {spell(self.value)} would not be used, because {self.section}.{self.owner} is "
            f"{spell(self.chosen)}; expected {self.section}.{self.owner}: {self.needed} with it, or "
            + ("no such option" if option else f"the default, {spell(self.default)}")
        )


def unused_settings(config: Config) -> Iterator[Unused]:
    """All keys that differ from their defaults and are not used, and options that only other optimizers have."""
    yield from _unused_options(config.optimizer)
    yield from _unused_keys(config)


def _unused_keys(config: Config) -> Iterator[Unused]:
    """Keys that their owners' values do not use."""
    for owner in _OWNERS:
        section, usual = getattr(config, owner.section), SECTIONS[owner.section]()
        chosen = getattr(section, owner.key)
        if owner.used(chosen) or owner.also(config):
            continue
        for key in owner.keys:
            value, default = (reduce(getattr, key.split("."), record) for record in (section, usual))
            if value != default:
                yield Unused(owner.section, key, value, default, owner.key, chosen, owner.needed)


def _unused_options(optimizer: OptimizerConfig) -> Iterator[Unused]:
    """Members of `optimizer.options` that other optimizers have."""
    for key, value in optimizer.options.items():
        names = readers(key)
        if names and optimizer.name not in names:
            default = getattr(record_of(names[0])(), key)
            yield Unused("optimizer", f"options.{key}", value, default, "name", optimizer.name, join_or(names))


def without_unused(config: Config, overrides: Written, before: OptimizerConfig) -> Config:
    """`config` with defaults for the keys that overrides have made unused, and a warning for each: a file for Muon can
    run with `optimizer.name=adamw`. Keys that are unused within one file or the overrides stay, for `validate`.

    `before` is the optimizer without the overrides.
    """
    config = _with_options_of_name(config, overrides.get("optimizer", {}), before)
    for unused in _unused_keys(config):
        overridden = overrides.get(unused.section, {})
        if unused.owner in overridden and unused.key not in overridden | rename_keys(unused.section, overridden):
            _warn(unused.section, unused.key, unused.value, unused.owner, unused.chosen)
            section = with_values(getattr(config, unused.section), _nested(unused.key, unused.default))
            config = replace(config, **{unused.section: section})
    return config


def _with_options_of_name(config: Config, overridden: dict[str, Any], before: OptimizerConfig) -> Config:
    """`config` without the options of the optimizer that an override of its name has replaced."""
    name, options = config.optimizer.name, dict(config.optimizer.options)
    for key, value in before.options.items():
        written, known = key in overridden.get("options", {}), before.name in readers(key)
        if written or not known or same_option(key, before.name, name):
            continue
        del options[key]
        if value != getattr(record_of(before.name)(), key, None):
            _warn("optimizer", f"options.{key}", value, "name", name)
    return replace(config, optimizer=replace(config.optimizer, options=options))


def _nested(key: str, value: Any) -> dict[str, Any]:
    """The value of a key as what `with_values` takes: `{mapping: {member: value}}` for a member of a mapping."""
    outer, _, inner = key.partition(".")
    return {outer: {inner: value} if inner else value}


def _warn(section: str, key: str, value: Any, owner: str, chosen: Any) -> None:
    warnings.warn(
        f"{section}.{key}: {spell(value)} is not used under the override {section}.{owner}={spell(chosen)}",
        stacklevel=4,
    )
