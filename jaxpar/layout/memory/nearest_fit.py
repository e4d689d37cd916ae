"""Advice for a plan that does not fit: the first change of settings that fits, in order of usual cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from jaxpar.config import Config, UserError
from jaxpar.config.axes import BATCH_AXES
from jaxpar.config.parts import OPTIMIZERS
from jaxpar.config.reading.overrides import with_overrides
from jaxpar.layout.memory.estimate import estimated_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.pages.units import size

MORE_DEVICES = "shard over more devices (parallel.fsdp with parallel.zero: 3), or choose a smaller model"

type Rebuild = Callable[[Config], StepLayout]
"""The layout of another configuration on the same devices; raises `UserError` if there is none."""


class Fit(NamedTuple):
    """Settings, and what a step takes with them."""

    settings: tuple[str, ...]
    """`section.key=value`, as on the command line."""
    bytes: int
    """Estimated bytes on one device."""


class Search(NamedTuple):
    """Result of a search for changes that fit."""

    nearest: Fit | None
    """None if nothing that was tried fits."""
    least: Fit | None
    """The smallest of what was tried; None if nothing could be tried."""
    alone: tuple[Fit, ...] = ()
    """Cheaper changes that were not enough by themselves."""


def nearest_fit(
    layout: StepLayout, limit: int, rebuild: Rebuild, needed: int | None = None, *, separate_memory: bool = True
) -> Search:
    """The first change of a configuration, in order of usual cost, that takes at most `limit` bytes on a device.

    Each change of `changes` is tried alone, then they are applied one after the other (`_combination_order`), each
    kept if it makes the step smaller. Estimates are corrected by the error of the estimate of `layout` itself against
    `needed`, XLA's number. Devices without separate memory (`separate_memory`) gain nothing by what goes to the host's.
    """
    config = layout.config
    estimated = estimated_bytes(config, layout.plan, separate_memory=separate_memory)
    shift = 0 if needed is None else needed - estimated

    def fit(settings: tuple[str, ...]) -> Fit | None:
        try:
            changed = rebuild(with_overrides(config, settings))
            return Fit(settings, estimated_bytes(changed.config, changed.plan, separate_memory=separate_memory) + shift)
        except UserError:  # what this model or these devices do not support does not help
            return None

    # What `auto` chose did not fit: it relies on estimates too.
    base = ("memory.remat=full",) if config.memory.remat == "auto" else ()
    tried: list[Fit] = []
    for setting in changes(config, host=separate_memory):
        if (candidate := fit(_joined(base, setting))) is None:
            continue
        if candidate.bytes <= limit:
            return Search(candidate, candidate, tuple(tried))
        tried.append(candidate)
    best = Fit((), estimated + shift)
    for setting in _combination_order([single.settings[-1] for single in tried], config):
        candidate = fit(_joined(best.settings or base, setting))
        if candidate is not None and candidate.bytes < best.bytes:
            best = candidate
            if best.bytes <= limit:
                return Search(best, best, tuple(tried))
    return Search(None, best if best.settings else None, tuple(tried))


def describe_fit(search: Search) -> str:
    """The result of a search in words: `the nearest that fits: ...`."""
    alone = f"; not enough alone: {', '.join(map(_shown, search.alone))}" if search.alone else ""
    if search.nearest is not None:
        return f"the nearest that fits: {_shown(search.nearest)}{alone}"
    least = f" (at least {_shown(search.least)})" if search.least else ""
    return f"no change of settings on these devices fits{least}: {MORE_DEVICES}{alone}"


def _shown(fit: Fit) -> str:
    settings = " with ".join(setting.replace("=", ": ", 1) for setting in fit.settings)
    return f"{settings} (about {size(fit.bytes, 2)})"


def _joined(settings: tuple[str, ...], setting: str) -> tuple[str, ...]:
    """`settings` with one more, which replaces that of the same key; a remat map also replaces an offloaded share."""
    key = setting.partition("=")[0]
    replaced = (key, "memory.offload_fraction") if key == "memory.remat" else (key,)
    return (*(other for other in settings if other.partition("=")[0] not in replaced), setting)


def _combination_order(alone: Sequence[str], config: Config) -> Iterator[str]:
    """Changes in the order in which they are combined: offloaded layers come right after an offloaded state."""
    for setting in alone:
        yield setting
        if setting == "memory.optimizer_offload=host" and config.memory.weights_offload == "none":
            yield "memory.weights_offload=host"


def changes(config: Config, *, host: bool = True) -> Iterator[str]:
    """Settings that make a step smaller, in a fixed order of usual cost: more sharding; smaller microbatches; more
    recomputation; offloading to the `host`, unless its memory is the devices' own; and fewer bits, which change the
    numbers."""
    parallel = config.parallel
    for zero in range(parallel.zero + 1, 3):
        yield f"parallel.zero={zero}"
    most = config.data.batch_size // prod(getattr(parallel, axis) for axis in BATCH_AXES)
    for microbatches in range(parallel.microbatches + 1, most + 1):
        if most % microbatches == 0:
            yield f"parallel.microbatches={microbatches}"
    remat = config.memory.remat
    if remat in ("none", "selective"):
        yield "memory.remat=gemm_last"
    if remat not in ("auto", "full"):
        yield "memory.remat=auto"
    if parallel.zero < 3:
        yield "parallel.zero=3"
    if remat != "full":
        yield "memory.remat=full"
    yield from _offloads(config, host=host)
    if OPTIMIZERS[config.optimizer.name].rounds:
        for moments in {"float32": ("bfloat16", "int8"), "bfloat16": ("int8",)}.get(config.precision.moments, ()):
            yield f"precision.moments={moments}"


def _offloads(config: Config, *, host: bool) -> Iterator[str]:
    memory = config.memory
    if host:
        for fraction in (0.25, 0.5, 0.75, 1.0):
            if fraction > memory.offload_fraction and memory.remat != "full":
                yield f"memory.offload_fraction={fraction}"
        yield "memory.remat={preset: full, layer_input: offload}"
    tiers = ("none", "host", "file")
    for tier in tiers[tiers.index(memory.optimizer_offload) + 1 :]:
        if host or tier != "host":
            yield f"memory.optimizer_offload={tier}"
    if host and memory.optimizer_offload == "host" and memory.weights_offload == "none":
        yield "memory.weights_offload=host"
