"""The mapping `model.linear_attention`: heads and widths of mixers with a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import POSITIVE, SHARE, WIDTH, at_least


@dataclass(frozen=True)
class LinearAttentionConfig:
    """Heads of a mixer with a state (`lightning`, `retention`, `gla`, `relu_gla`, `gated_deltanet`, `kimi_delta`,
    `mamba2`), where they differ from `model.heads` and `model.head_dim`. The state of a head is a matrix of `key_dim` x
    `value_dim`. A `short_conv` has `heads` x `value_dim` channels and no state."""

    heads: Annotated[int, at_least(1, WIDTH)] | None = None
    """Heads of values, each with a state; null is `model.heads`. Published Mamba-2 models have
    `2 * embed / value_dim`."""
    key_heads: Annotated[int, at_least(1, WIDTH)] | None = None
    """Heads of queries and keys, each used by `heads / key_heads` heads of values; null is `heads`. They are Mamba-2's
    groups. In `relu_gla` they are heads of keys and values, each used by a group of query heads."""
    key_dim: Annotated[int, at_least(1, WIDTH)] | None = None
    """Width of a query and of a key; null is the width of a head of attention. It is Mamba-2's state size."""
    value_dim: Annotated[int, at_least(1, WIDTH)] | None = None
    """Width of a value; null is the width of a head of attention."""
    taps: Annotated[int, at_least(2, WIDTH)] = 4
    """Tokens that a short convolution is a sum over, itself the last, in mixers that have one (LFM2 has 3)."""
    least_step: Annotated[float, SHARE] = 0.0
    """Mamba-2's steps are at least this; 0 is no limit (transformers' Nemotron-H has 0.001)."""
    norm_epsilon: Annotated[float, POSITIVE] | None = None
    """Added to the mean square in the norm of the output; null means `model.norm_epsilon`."""
