"""The section `model.rope`: rotary embeddings, and how their frequencies are stretched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from jaxpar.config.bounds import POSITIVE, SHARE_ABOVE_0, at_least


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embeddings (`model.position: rope`). A preset fills every field; a file, an override and a kind of layers
    change the fields that they name."""

    base: Annotated[float, POSITIVE] = 10000.0
    """Base of the rotary frequencies."""
    partial: Annotated[float, SHARE_ABOVE_0] = 1.0
    """Share of the dims of each query and key that rotate, the first ones (Phi-4-mini); the others stay as they are."""
    scaling: Literal["none", "linear", "llama3", "yarn", "longrope", "proportional"] = "none"
    """Scaling of rotary frequencies for contexts longer than those of the first training. `proportional`
    stretches none: the share `partial` of the pairs, the fastest, rotate with the frequencies that they have among all
    pairs (Gemma 4)."""
    factor: Annotated[float, POSITIVE] = 8.0
    """Stretch factor of `linear`, `llama3` and `yarn` scaling; of `longrope`, what `attention_factor` follows from."""
    original_length: Annotated[int, at_least(1)] = 8192
    """Context length before stretching (`llama3`, `yarn` and `longrope` scaling)."""
    short_factors: tuple[Annotated[float, POSITIVE], ...] | None = None
    """A divisor of the frequency of each pair of dims, in rows of up to `original_length` tokens (`longrope`:
    Phi-4-mini)."""
    long_factors: tuple[Annotated[float, POSITIVE], ...] | None = None
    """The same in longer rows; in generation, where prompt and answer may be longer together (`longrope`)."""
    low_frequency: Annotated[float, POSITIVE] = 1.0
    """Wavelengths longer than `original_length / low_frequency` are stretched in full (`llama3`)."""
    high_frequency: Annotated[float, POSITIVE] = 4.0
    """Wavelengths shorter than `original_length / high_frequency` are kept (`llama3`)."""
    beta_fast: Annotated[float, POSITIVE] = 32.0
    """Pairs of dims that turn more often than this within `original_length` are kept (`yarn`)."""
    beta_slow: Annotated[float, POSITIVE] = 1.0
    """Pairs of dims that turn less often than this within `original_length` are stretched in full (`yarn`)."""
    truncate: bool = True
    """Round the first and last pair of dims that are stretched in part to whole numbers (`yarn`)."""
    attention_factor: Annotated[float, POSITIVE] | None = None
    """Factor of rotated queries and of rotated keys (`yarn`, `longrope`); null means `0.1 ln(factor) + 1`, or what the
    next two keys make of it, and with `longrope` `sqrt(1 + ln(factor) / ln(original_length))`."""
    mscale: Annotated[float, at_least(0, 1e30)] | None = None
    """With `mscale_all_dim`, that factor is `0.1 mscale ln(factor) + 1`, divided by the same of
    `mscale_all_dim` (`yarn`: DeepSeek)."""
    mscale_all_dim: Annotated[float, at_least(0, 1e30)] | None = None
    """See `mscale`."""
