"""The mappings `model.experts`, feed-forwards of which each token uses a few, and `parallel.experts`, their layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

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
    share of the choices of a rank's tokens (`docs/experts-exchange.md`). An empty mapping sends each token."""
    z_loss: float = 0.0
    """Weight of the mean of `logsumexp(router logits)^2`."""


@dataclass(frozen=True)
class ExpertOptions:
    """How experts get their tokens and multiply them."""

    exchange: Literal["auto", "all_to_all", "hierarchical", "all_gather"] = "auto"
    """How tokens reach the ranks of their experts: each once to every rank with some of its own (`all_to_all`), the
    same inside nodes and then between them (`hierarchical`), or all to all ranks (`all_gather`); `auto` is the one of
    `all_to_all` and `all_gather` that sends less."""
    backend: Literal["auto", "mosaic", "triton", "xla"] = "auto"
    """Products of the rows of each expert with its matrices: `mosaic` is our kernel for Hopper GPUs, `triton` the one
    for Ampere and later, `xla` a loop over blocks of rows on any device. `auto` takes the first of the kernels that a
    record shows to be verified on such GPUs."""
    capacity: float = 2.0
    """Rows that a rank has room for in an exchange, as a multiple of an even share. What is more is exchanged and
    computed afterwards: no token is dropped, and a step only takes longer."""
    slices: int | Literal["auto"] = "auto"
    """Parts into which a rank's tokens are cut: one is exchanged while the experts work on another. `auto` takes what
    is expected to be fastest on the GPUs, and 1 elsewhere."""
    own_rows: Literal["auto", "first", "exchanged"] = "auto"
    """Where tokens are cut into slices, the rows that a rank has for its own experts: computed apart while the first
    slice is sent (`first`), or as part of each slice (`exchanged`); `auto` is what is expected to be faster."""
    imbalance: float = 1.0
    """Rows of the rank with the most, relative to the mean: what the metric `experts/rank_load` of a run measures. The
    planner and `jaxpar.schedule` predict times with it, of layouts that split experts; no run depends on it."""
