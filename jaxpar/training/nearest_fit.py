"""What to change in a plan that does not fit: the first change of settings, in order of usual cost, that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jaxpar.config import Config, UserError
from jaxpar.config.overrides import with_overrides
from jaxpar.training.memory_check import mebibytes
from jaxpar.training.memory_estimate import estimated_bytes
from jaxpar.training.step import TrainStep

MORE_DEVICES = "shard over more devices (parallel.fsdp with parallel.zero: 3), or choose a smaller model"

type Rebuild = Callable[[Config], TrainStep]
"""The step of another configuration on the same devices; raises `UserError` where there is none."""


class Fit(NamedTuple):
    """Settings, and what a step takes with them."""

    settings: tuple[str, ...]
    """`section.key=value`, as on the command line."""
    bytes: int
    """Estimated, on one device."""


class Search(NamedTuple):
    """What was found."""

    nearest: Fit | None
    """None where nothing that was tried fits."""
    least: Fit | None
    """The smallest of what was tried; None where nothing could be tried."""
    alone: tuple[Fit, ...] = ()
    """Cheaper changes that by themselves were not enough."""


def nearest_fit(step: TrainStep, limit: int, rebuild: Rebuild, needed: int | None = None) -> Search:
    """The first change of `step`'s configuration, in order of usual cost, that takes at most `limit` bytes on a device.

    Each change of `changes` is tried alone, then they are made one after the other (`_in_turn`), each kept where it
    makes the step smaller. Estimates are shifted by what the estimate of `step` itself misses of `needed`, XLA's own
    number.
    """
    config = step.config
    own = estimated_bytes(step)
    shift = 0 if needed is None else needed - own

    def fit(settings: tuple[str, ...]) -> Fit | None:
        try:
            changed = rebuild(with_overrides(config, settings))
            return Fit(settings, estimated_bytes(changed) + shift)
        except UserError:  # what this model or these devices do not support is no way out
            return None

    # What `auto` chose was too much: it goes by estimates too.
    base = ("memory.remat=full",) if config.memory.remat == "auto" else ()
    tried: list[Fit] = []
    for setting in changes(config):
        if (found := fit(_joined(base, setting))) is None:
            continue
        if found.bytes <= limit:
            return Search(found, found, tuple(tried))
        tried.append(found)
    best = Fit((), own + shift)
    for setting in _in_turn([single.settings[-1] for single in tried], config):
        found = fit(_joined(best.settings or base, setting))
        if found is not None and found.bytes < best.bytes:
            best = found
            if best.bytes <= limit:
                return Search(best, best, tuple(tried))
    return Search(None, best if best.settings else None, tuple(tried))


def told(search: Search) -> str:
    """A search in words: `the nearest that fits: ...`."""
    alone = f"; not enough alone: {', '.join(map(_shown, search.alone))}" if search.alone else ""
    if search.nearest is not None:
        return f"the nearest that fits: {_shown(search.nearest)}{alone}"
    least = f" (at least {_shown(search.least)})" if search.least else ""
    return f"no change of settings on these devices fits{least}: {MORE_DEVICES}{alone}"


def _shown(fit: Fit) -> str:
    settings = " with ".join(setting.replace("=", ": ", 1) for setting in fit.settings)
    return f"{settings} (about {mebibytes(fit.bytes)})"


def _joined(settings: tuple[str, ...], setting: str) -> tuple[str, ...]:
    """`settings` with one more, in place of another value of the same key; a share of what is kept goes with a map."""
    key = setting.partition("=")[0]
    replaced = (key, "memory.offload_fraction") if key == "memory.remat" else (key,)
    return (*(other for other in settings if other.partition("=")[0] not in replaced), setting)


def _in_turn(alone: Sequence[str], config: Config) -> Iterator[str]:
    """Changes in the order in which they are joined: weights of layers may follow a state on the host at once."""
    for setting in alone:
        yield setting
        if setting == "memory.optimizer_offload=host" and config.memory.weights_offload == "none":
            yield "memory.weights_offload=host"


def changes(config: Config) -> Iterator[str]:
    """Settings that make a step smaller, in a fixed order of usual cost: state that was let stay on the device; what
    only shards more; smaller microbatches; more recomputation; what crosses the link to the host; and fewer bits, which
    change the numbers."""
    parallel, memory = config.parallel, config.memory
    if memory.optimizer_resident:
        yield "memory.optimizer_resident=0"
    if memory.weights_resident:
        yield "memory.weights_resident=0"
    for zero in range(parallel.zero + 1, 3):
        yield f"parallel.zero={zero}"
    most = config.data.batch_size // (parallel.replica * parallel.fsdp * parallel.expert)
    for microbatches in range(parallel.microbatches + 1, most + 1):
        if most % microbatches == 0:
            yield f"parallel.microbatches={microbatches}"
    if memory.remat in ("none", "selective"):
        yield "memory.remat=gemm_last"
    if memory.remat not in ("auto", "full"):
        yield "memory.remat=auto"
    if parallel.zero < 3:
        yield "parallel.zero=3"
    if memory.remat != "full":
        yield "memory.remat=full"
    for fraction in (0.25, 0.5, 0.75, 1.0):
        if fraction > memory.offload_fraction and memory.remat != "full":
            yield f"memory.offload_fraction={fraction}"
    yield "memory.remat={preset: full, layer_input: offload}"
    tiers = ("none", "host", "file")
    for tier in tiers[tiers.index(memory.optimizer_offload) + 1 :]:
        yield f"memory.optimizer_offload={tier}"
    if memory.optimizer_offload == "host" and memory.weights_offload == "none":
        yield "memory.weights_offload=host"
    if config.optimizer.name != "adafactor":
        for moments in {"float32": ("bfloat16", "int8"), "bfloat16": ("int8",)}.get(config.precision.moments, ()):
            yield f"precision.moments={moments}"
