"""Remat maps: for each named activation, saved or recomputed; presets are such maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax

type Treatment = Literal["save", "recompute"]

PRESETS: Mapping[str, Callable[[str], bool]] = {
    "none": lambda name: True,
    "full": lambda name: False,
    "selective": lambda name: name not in CHEAP,
}
"""Whether each preset saves an activation."""

CHEAP = frozenset({"attention_input", "mlp_input", "mlp_hidden"})
"""Activations that elementwise work brings back: norms and the MLP's non-linearity. `selective` recomputes them, and
no matmul but those of attention's own backward runs twice."""


def remat_map(preset: str, activations: Iterable[str]) -> dict[str, Treatment]:
    """What `preset`, one of `PRESETS`, does with each of `activations`."""
    return {name: "save" if PRESETS[preset](name) else "recompute" for name in activations}


def remat_policy(treatments: Mapping[str, str]) -> Callable[..., Any] | None:
    """The `jax.checkpoint` policy of a remat map; None when everything is saved and there is nothing to recompute."""
    saved = [name for name, treatment in treatments.items() if treatment == "save"]
    if len(saved) == len(treatments):
        return None
    return jax.checkpoint_policies.save_only_these_names(*saved)
