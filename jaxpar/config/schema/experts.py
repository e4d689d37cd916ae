"""The mapping `model.experts`: feed-forwards of which each token uses a few."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxpar.config.parts import ROUTERS


@dataclass(frozen=True)
class ExpertsConfig:
    """Experts in place of the feed-forward: a router chooses some for each token, and adds up their outputs."""

    count: int
    """Number of experts."""
    per_token: int = 2
    """Experts that each token uses."""
    width: int | None = None
    """Hidden width of an expert; null means `model.mlp`."""
    shared: int = 0
    """Further experts that every token uses, computed as one of `shared` times the width."""
    router: Annotated[str, ROUTERS] = "top_k_softmax"
    """How experts are chosen and weighted: `docs/experts.md` has the table."""
    router_options: dict[str, object] = field(default_factory=dict, hash=False)
    """Options of the router: `docs/experts.md` has those of each."""
    balance_loss: float = 0.01
    """Weight of the router's loss that balances the load of the experts, counted over the microbatch on all ranks."""
    sequence_loss: float = 0.0
    """Weight of the same loss counted over each row, averaged over tokens."""
    capacity_factor: float | None = None
    """In training, assignments that an expert computes, as a multiple of an even share of those of the microbatch on
    all ranks: the first ones in the order of the tokens. Null drops none."""
    clusters: dict[str, object] = field(default_factory=dict, hash=False)
    """In training, tokens of an expert that are alike are sent as their mean: `share` is the rows that are sent, as a
    share of the choices of a rank's tokens (`docs/experts.md`). An empty mapping sends each token."""
    z_loss: float = 0.0
    """Weight of the mean of `logsumexp(router logits)^2`."""
