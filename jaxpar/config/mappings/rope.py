"""The section `model.rope`: rotary embeddings, and how their frequencies are stretched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embeddings (`model.position: rope`). A preset fills every field; a file, an override and a kind of layers
    change the fields that they name."""

    base: float = 10000.0
    """Base of the rotary frequencies."""
    partial: float = 1.0
    """Share of the dims of each query and key that rotate, the first ones (Phi-4-mini); the others stay as they are."""
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    """How rotary frequencies are stretched for contexts longer than the model was first trained on."""
    factor: float = 8.0
    """Stretch factor of `linear`, `llama3` and `yarn` scaling."""
    original_length: int = 8192
    """Context length before stretching (`llama3` and `yarn` scaling)."""
    low_frequency: float = 1.0
    """Wavelengths longer than `original_length / low_frequency` are stretched in full (`llama3`)."""
    high_frequency: float = 4.0
    """Wavelengths shorter than `original_length / high_frequency` are kept (`llama3`)."""
    beta_fast: float = 32.0
    """Pairs of dims that turn more often than this within `original_length` are kept (`yarn`)."""
    beta_slow: float = 1.0
    """Pairs of dims that turn less often than this within `original_length` are stretched in full (`yarn`)."""
    truncate: bool = True
    """Round the first and last pair of dims that are stretched in part to whole numbers (`yarn`)."""
    attention_factor: float | None = None
    """Factor of rotated queries and of rotated keys (`yarn`); null means `0.1 ln(factor) + 1`, or what the next
    two keys make of it."""
    mscale: float | None = None
    """With `mscale_all_dim`, that factor is `0.1 mscale ln(factor) + 1`, divided by the same of
    `mscale_all_dim` (`yarn`: DeepSeek)."""
    mscale_all_dim: float | None = None
    """See `mscale`."""
