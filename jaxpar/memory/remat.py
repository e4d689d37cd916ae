"""Remat maps: for each named activation, saved, recomputed or offloaded; presets are such maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, one_of

type Treatment = Literal["save", "recompute", "offload"]

TREATMENTS: Mapping[str, Treatment] = {"save": "save", "recompute": "recompute", "offload": "offload"}

LAYER_INPUT = "layer_input"
"""The activation that the others are recomputed from: saved or offloaded, never recomputed."""

PRESETS: Mapping[str, Callable[[str], bool]] = {
    "none": lambda name: True,
    "full": lambda name: False,
    "selective": lambda name: name not in CHEAP,
}
"""Whether each preset saves an activation."""

CHEAP = frozenset({"attention_input", "mlp_input", "mlp_hidden"})
"""Activations that elementwise work brings back: norms and the MLP's non-linearity. `selective` recomputes them, and
no matmul but those of attention's own backward runs twice."""

BASE = "preset"
"""The key of a user's map that names the preset for what the map does not mention."""

DEFAULT = "selective"
"""That preset, where the map does not say."""


def base_preset(remat: str | Mapping[str, str]) -> str:
    """The preset that `memory.remat` is, or that its map begins with. Raises `UserError` for one that there is not."""
    preset = remat if isinstance(remat, str) else remat.get(BASE, DEFAULT)
    if preset not in PRESETS:
        near = did_you_mean(preset, PRESETS)
        raise UserError(f"memory.remat.{BASE}: expected {one_of(PRESETS)}, got {preset!r}{near}")
    return preset


def remat_map(remat: str | Mapping[str, str], activations: Iterable[str]) -> dict[str, Treatment]:
    """What `memory.remat`, a preset or a map of the user's, does with each of `activations`.

    A map says it by name; names that it leaves out are treated as its `preset` treats them, or as `selective` does.

    Raises:
        UserError: a name is no activation, a treatment is not among `TREATMENTS`, or a layer's input is recomputed.
    """
    saves = PRESETS[base_preset(remat)]
    treatments: dict[str, Treatment] = {
        name: "save" if name == LAYER_INPUT or saves(name) else "recompute" for name in activations
    }
    for name, wanted in remat.items() if isinstance(remat, Mapping) else ():
        if name != BASE:
            treatments[name] = _checked(name, wanted, treatments)
    return treatments


def _checked(name: str, wanted: str, known: Mapping[str, Treatment]) -> Treatment:
    if name not in known:
        near = did_you_mean(name, (*known, BASE)) or f"; there are {', '.join(known)}"
        raise UserError(f"memory.remat: {name!r} is no activation{near}")
    allowed = [t for t in TREATMENTS if name != LAYER_INPUT or t != "recompute"]
    if wanted in allowed:
        return TREATMENTS[wanted]
    why = " (the others are recomputed from it)" if wanted == "recompute" else ""
    raise UserError(
        f"memory.remat.{name}: expected {one_of(allowed)}{why}, got {wanted!r}{did_you_mean(wanted, allowed)}"
    )


def offloaded(treatments: Mapping[str, str]) -> list[str]:
    """Names of the activations that lie in host memory between forward and backward."""
    return [name for name, treatment in treatments.items() if treatment == "offload"]


def remat_policy(treatments: Mapping[str, str]) -> Callable[..., Any] | None:
    """The `jax.checkpoint` policy of a remat map, for what lies inside a layer (its input is the layer loop's to keep).

    None when everything is saved and there is nothing to recompute.
    """
    inside = {name: treatment for name, treatment in treatments.items() if name != LAYER_INPUT}
    saved = [name for name, treatment in inside.items() if treatment == "save"]
    if len(saved) == len(inside):
        return None
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=saved,
        names_which_can_be_offloaded=offloaded(inside),
        offload_src="device",
        offload_dst="pinned_host",
    )
