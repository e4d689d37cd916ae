"""The mapping `model.experts`: feed-forwards of which each token uses a few."""

from __future__ import annotations

from dataclasses import dataclass
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
    groups: int | None = None
    """Groups of neighbouring experts, of which a token uses `groups_per_token`; null means that it may use any."""
    groups_per_token: int | None = None
    """Groups among which a token's experts are chosen."""
    projection: int | None = None
    """Width in which the router `cosine` compares tokens and experts; null means half of `count`."""
    temperature: float = 2.0
    """Temperature of the router `dense_to_sparse` at the first step."""
    last_temperature: float = 0.3
    """Temperature after `anneal_steps`, and in evaluations."""
    anneal_steps: int = 1000
    """Steps over which the temperature of `dense_to_sparse` falls."""
    threshold: float = 0.001
    """Share of the weights from which `dense_to_sparse` uses an expert."""
    force: bool = False
    """Allow the router `expert_choice`, with which a token's experts depend on later tokens."""
    scale: float = 1.0
    """Factor of the weights of the routers `sigmoid` and `softmax_top_k`."""
    balance_loss: float = 0.01
    """Weight of the router's loss that balances the load of the experts, counted over the microbatch on all ranks."""
    sequence_loss: float = 0.0
    """Weight of the same loss counted over each row, averaged over tokens."""
    capacity_factor: float | None = None
    """In training, assignments that an expert computes, as a multiple of an even share of those of the microbatch on
    all ranks: the first ones in the order of the tokens. Null drops none."""
    compression: float | None = None
    """In training, rows that are sent to experts, as a share of the choices of a rank's tokens: alike tokens of an
    expert are sent as their mean. Null sends each token."""
    hashes: int = 6
    """Locality-sensitive hashes in which tokens that are sent as one are equal, where there are enough rows."""
    residual: float = 1.0
    """Factor of a token's difference from the mean that is sent for it, which is added to the expert's result."""
    z_loss: float = 0.0
    """Weight of the mean of `logsumexp(router logits)^2`."""
    bias_rate: float = 0.001
    """Step by which each update moves the biases of the router `sigmoid` towards an equal load."""
