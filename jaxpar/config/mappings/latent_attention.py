"""The mapping `model.latent_attention`: keys and values that are expanded from a few numbers for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxpar.config.bounds import POSITIVE, WIDTH, at_least


@dataclass(frozen=True)
class LatentAttentionConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values of all heads come from one latent
    vector for each token, which is what a cache holds, and from a rotary key that all heads share."""

    kv_rank: Annotated[int, at_least(1, WIDTH)]
    """Width of the latent vector of keys and values."""
    query_rank: Annotated[int, at_least(1, WIDTH)] | None = None
    """Width of a latent vector of queries; null projects them from the residual stream."""
    rope_dim: Annotated[int, at_least(1, WIDTH)] = 64
    """Width of the part of a query that rotates, and of the shared rotary key."""
    nope_dim: Annotated[int, at_least(1, WIDTH)] = 128
    """Width of the part of a query and of a key that does not rotate."""
    value_dim: Annotated[int, at_least(1, WIDTH)] = 128
    """Width of a value."""
    norm_epsilon: Annotated[float, POSITIVE] | None = None
    """Added to the mean square in the norms of latent vectors; null means `model.norm_epsilon`."""
