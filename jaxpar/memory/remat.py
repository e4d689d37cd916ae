"""Remat maps: each named activation of each layer is saved, recomputed or offloaded; presets are such maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax

from jaxpar.config.errors import UserError
from jaxpar.config.plan import LayerRun
from jaxpar.config.spelling import did_you_mean, join_or
from jaxpar.hardware.host import PINNED
from jaxpar.layers.declaration.activations import LAYER_INPUT
from jaxpar.layers.declared import known_activations
from jaxpar.runtime.passes import ALWAYS_SAVED

type Treatment = Literal["save", "recompute", "offload"]

type RematSetting = str | Mapping[str, str | int]
"""A preset, or a user's map of treatments by name."""

TREATMENTS: Mapping[str, Treatment] = {"save": "save", "recompute": "recompute", "offload": "offload"}


def cheap(name: str) -> bool:
    """Whether recomputing an activation takes only elementwise work: the output of a norm or non-linearity. The matmul
    that reads it does not run again, since no gradient needs its output (Kuaishou's GEMM-last, USENIX ATC'24)."""
    return name in (known := known_activations()) and known[name].cheap


def is_attention_core(name: str) -> bool:
    """Whether attention itself computes an activation from queries, keys and values."""
    return name in (known := known_activations()) and known[name].core


PRESETS: Mapping[str, Callable[[str], bool]] = {
    "none": lambda name: True,
    "gemm_last": lambda name: not cheap(name),
    "selective": lambda name: not is_attention_core(name),
    "full": lambda name: False,
}
"""Predicate of each preset: whether it saves an activation. `selective` is from Korthikanti et al. 2022
(arXiv:2205.05198): only attention itself is recomputed; with flash attention, which stores no scores, that frees little
memory."""

AUTO = "auto"
"""Value in place of a preset: the cheapest of all maps that fit (`pareto`)."""

PRESET = "preset"
"""Key of a user's map: the preset for activations that the map does not name."""

LAYERS = "layers"
"""Key of a user's map in a list: the layers that the map applies to."""

DEFAULT = "gemm_last"
"""The preset for such activations if the map has no `preset`."""

PER_LAYER = "per layer"
"""The name of a list of maps, each for some of the layers."""

_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z")


def remat_name(remat: RematSetting | Sequence[Mapping[str, str | int]]) -> str:
    """The name of `memory.remat`: a preset, or the preset of its map. Raises `UserError` for another."""
    if not isinstance(remat, str | Mapping):
        return PER_LAYER
    return AUTO if remat == AUTO else _base(remat, "memory.remat")


def layer_runs(
    remat: RematSetting | Sequence[Mapping[str, str | int]], activations: Iterable[str], layers: int
) -> tuple[LayerRun, ...]:
    """Treatment of each of `activations` by `memory.remat` in a chunk of `layers` layers; equal neighbours are merged.

    Each map of a list is for some of the layers; `gemm_last` is for layers without a map.

    Raises:
        UserError: as `remat_map`; a layer does not exist, or is in two maps; the map or list is empty.
    """
    names = tuple(activations)
    if not remat:
        empty = "[]" if isinstance(remat, Sequence) else "{}"
        raise UserError(f"memory.remat: {empty} says nothing; expected {join_or((*PRESETS, AUTO))}, or a map by name")
    if isinstance(remat, str | Mapping):
        return (LayerRun(layers, dict(remat_map(remat, names))),)
    maps: list[Mapping[str, Treatment] | None] = [None] * layers
    for index, entry in enumerate(remat):
        key = f"memory.remat[{index}]"
        treatments = remat_map({name: value for name, value in entry.items() if name != LAYERS}, names, key)
        for layer in _range(key, entry, layers):
            if maps[layer] is not None:
                raise UserError(f"{key}.{LAYERS}: layer {layer} is in an earlier map too; expected each once")
            maps[layer] = treatments
    default = remat_map(DEFAULT, names)
    return joined([LayerRun(1, dict(default if treatments is None else treatments)) for treatments in maps])


def joined(runs: Iterable[LayerRun]) -> tuple[LayerRun, ...]:
    """Merge neighbouring runs with equal treatments, and drop runs of 0 layers."""
    merged: list[LayerRun] = []
    for run in runs:
        if merged and merged[-1].activations == run.activations:
            run = LayerRun(merged.pop().layers + run.layers, run.activations)
        if run.layers:
            merged.append(run)
    return tuple(merged)


def runs_by_kind(runs: Sequence[LayerRun], slots: Sequence[str]) -> dict[str, tuple[LayerRun, ...]]:
    """Remat of the layers of each kind, in a chunk with slots of these kinds; equal neighbours of a kind are merged.

    Args:
        runs: runs of all slots, in order.
        slots: kind of each slot.
    """
    if len(kinds := dict.fromkeys(slots)) == 1:
        return dict.fromkeys(kinds, tuple(runs))
    each = zip(slots, (run.activations for run in runs for _ in range(run.layers)), strict=True)
    by_kind: dict[str, list[LayerRun]] = {kind: [] for kind in kinds}
    for kind, activations in each:
        by_kind[kind].append(LayerRun(1, activations))
    return {kind: joined(kind_runs) for kind, kind_runs in by_kind.items()}


def remat_map(remat: RematSetting, activations: Iterable[str], key: str = "memory.remat") -> dict[str, Treatment]:
    """Treatment of each of `activations` by a preset or a user's map.

    A map gives treatments by name; its `preset`, or `gemm_last`, is for names that it leaves out. A name that only
    layers of other models have is ignored.

    Raises:
        UserError: a name is not an activation of any block, a treatment is not in `TREATMENTS`, or a layer's input is
            recomputed.
    """
    saves = PRESETS[_base(remat, key)]
    treatments: dict[str, Treatment] = {
        name: "save" if name == LAYER_INPUT or saves(name) else "recompute" for name in activations
    }
    for name, wanted in remat.items() if isinstance(remat, Mapping) else ():
        if name != PRESET:
            treatment = _checked(key, name, wanted, treatments)
            treatments |= {name: treatment} if name in treatments else {}
    return treatments


def offloaded(runs: Iterable[LayerRun]) -> list[str]:
    """Names of the activations that some layer offloads to host memory between forward and backward."""
    names = [name for run in runs for name, treatment in run.activations.items() if treatment == "offload"]
    return list(dict.fromkeys(names))


def recomputed(runs: Iterable[LayerRun], name: str) -> bool:
    """Whether some layer recomputes an activation."""
    return any(run.activations.get(name) == "recompute" for run in runs)


def remat_policy(treatments: Mapping[str, str]) -> Callable[..., Any]:
    """The `jax.checkpoint` policy of a remat map, inside a layer (the layer loop saves the layer's input).

    Scales of quantized matmuls and hashes of tokens are always saved, so that recomputation uses those of the first
    pass. Unnamed intermediates are never saved: those inside norms and non-linearities are recomputed under every map.
    """
    inside = {name: treatment for name, treatment in treatments.items() if name != LAYER_INPUT}
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[ALWAYS_SAVED, *(name for name, treatment in inside.items() if treatment == "save")],
        names_which_can_be_offloaded=[name for name, treatment in inside.items() if treatment == "offload"],
        offload_src="device",
        offload_dst=PINNED,
    )


def _base(remat: RematSetting, key: str) -> str:
    preset = remat if isinstance(remat, str) else remat.get(PRESET, DEFAULT)
    if preset == AUTO:
        raise UserError(f"{key}.{PRESET}: {AUTO} chooses for all layers and names; expected memory.remat: {AUTO} alone")
    if preset not in PRESETS:
        near = did_you_mean(str(preset), PRESETS)
        raise UserError(f"{key}.{PRESET}: expected {join_or(PRESETS)}, got {preset!r}{near}")
    return str(preset)


def _range(key: str, entry: Mapping[str, str | int], layers: int) -> range:
    """The layers that one map of a list is for."""
    if LAYERS not in entry:
        raise UserError(f"{key}: expected {LAYERS}, as in {{{LAYERS}: 0-{layers - 1}, {PRESET}: full}}")
    written = entry[LAYERS]
    numbers = _RANGE.match(str(written))
    first, last = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (1, 0)
    if not first <= last < layers:
        raise UserError(
            f"{key}.{LAYERS}: expected a layer or a range of layers from 0 to {layers - 1} of a chunk, as in 0-3, got "
            f"{written!r}"
        )
    return range(first, last + 1)


def _checked(key: str, name: str, wanted: object, activations: Mapping[str, Treatment]) -> Treatment:
    known = {**activations, **known_activations()}
    if name not in known:
        near = did_you_mean(name, (*known, PRESET)) or f"; there are {', '.join(activations)}"
        raise UserError(f"{key}: {name!r} is not an activation{near}")
    allowed = [t for t in TREATMENTS if name != LAYER_INPUT or t != "recompute"]
    if wanted in allowed:
        return TREATMENTS[str(wanted)]
    why = " (all others are recomputed from it)" if wanted == "recompute" else ""
    near = did_you_mean(str(wanted), allowed)
    raise UserError(f"{key}.{name}: expected {join_or(allowed)}{why}, got {wanted!r}{near}")


def nearest_preset(treatments: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The preset nearest to `treatments`, and the treatments that differ from it."""
    bases = {preset: remat_map(preset, treatments) for preset in PRESETS}
    changes = {
        preset: {name: treatment for name, treatment in treatments.items() if treatment != base[name]}
        for preset, base in bases.items()
    }
    nearest = min(changes, key=lambda preset: len(changes[preset]))
    return nearest, changes[nearest]
