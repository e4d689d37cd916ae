"""The mappings `model.experts`, feed-forwards of which each token uses a few, and `parallel.experts`, their layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from jaxpar.config.bounds import CAPACITY, SHARE, SLICES, WIDTH, at_least
from jaxpar.config.mappings.routers import ROUTERS
from jaxpar.config.parts import MembersOf


@dataclass(frozen=True)
class Clustering:
    """The mapping `model.experts.clusters`."""

    share: Annotated[float, at_least(1e-3, 1)]
    """Rows that are sent to experts, as a share of the choices of a rank's tokens."""
    hashes: Annotated[int, at_least(1, 64)] = 6
    """Hashes in which tokens that are sent as one are equal, where there are enough rows."""
    residual: Annotated[float, SHARE] = 1.0
    """Factor of a token's difference from the mean that is sent for it."""


@dataclass(frozen=True)
class ExpertsConfig:
    """Experts in place of the feed-forward: a router chooses some for each token, and adds up their outputs."""

    count: Annotated[int, at_least(1)]
    """The number of experts."""
    per_token: Annotated[int, at_least(1)] = 2
    """Experts that each token uses."""
    width: Annotated[int, at_least(1, WIDTH)] | None = None
    """Hidden width of an expert; null means `model.mlp`."""
    shared: Annotated[int, at_least(0)] = 0
    """Further experts that every token uses, computed as one of `shared` times the width."""
    shared_router: bool = False
    """Weigh the output of the shared experts by the sigmoid of a number of each token (Qwen2-MoE, Qwen3-Next)."""
    norms: bool = False
    """RMSNorms of the block itself, beside a shared expert: the router and the routed experts read the residual stream,
    each through a norm, the shared one the block's input, and both outputs are normed before they are added. The
    router's norm has a factor for each number, and each expert's weight has a learned factor (Gemma 4)."""
    weigh_inputs: bool = False
    """Multiply a token by the weight of its expert before the expert, instead of the expert's output (Llama 4)."""
    router: Annotated[str, ROUTERS] = "top_k_softmax"
    """Router, which chooses and weighs experts: `docs/routers.md` has the table."""
    router_options: Annotated[
        dict[str, object], MembersOf(lambda experts: ROUTERS[experts.get("router", ExpertsConfig.router)])
    ] = field(default_factory=dict, hash=False)
    """Options of the router: `docs/routers.md` has those of each."""
    balance_loss: Annotated[float, at_least(0, 1e30)] = 0.01
    """Weight of the router's loss that balances the load of the experts, counted over the microbatch on all ranks."""
    sequence_loss: Annotated[float, at_least(0, 1e30)] = 0.0
    """Weight of the same loss counted over each row, averaged over tokens."""
    capacity_factor: Annotated[float, at_least(1e-3, 1e30)] | None = None
    """In training, assignments that an expert computes, as a multiple of an even share of those of the microbatch on
    all ranks: the first ones in the order of the tokens. Null drops none."""
    clusters: Annotated[
        dict[str, object], MembersOf(lambda experts: Clustering if experts.get("clusters") else None)
    ] = field(default_factory=dict, hash=False)
    """In training, tokens of an expert that are alike are sent as their mean: `share` is the rows that are sent, as a
    share of the choices of a rank's tokens (`docs/experts-exchange.md`). An empty mapping sends each token."""
    z_loss: Annotated[float, at_least(0, 1e30)] = 0.0
    """Weight of the mean of `logsumexp(router logits)^2`."""


@dataclass(frozen=True)
class ExpertOptions:
    """Exchange and matmuls of experts."""

    exchange: Literal["auto", "all_to_all", "hierarchical", "all_gather"] = "auto"
    """Exchange of tokens with the ranks of their experts: each once to every rank with some of its own (`all_to_all`),
    the same inside nodes and then between them (`hierarchical`), or all to all ranks (`all_gather`); `auto` is the one
    of `all_to_all` and `all_gather` that sends less."""
    backend: Literal["auto", "mosaic", "triton", "xla"] = "auto"
    """Products of the rows of each expert with its matrices: `mosaic` is our kernel for Hopper and Blackwell GPUs,
    `triton` the one for Ampere and later, `xla` a loop over blocks of rows on any device. `auto` takes the first of the
    kernels that a record shows to be verified on such GPUs."""
    capacity: Annotated[float, at_least(1, CAPACITY)] = 2.0
    """Rows that a rank has room for in an exchange, as a multiple of an even share. What is more is exchanged and
    computed afterwards: no token is dropped, and a step only takes longer."""
    slices: Annotated[int, at_least(1, SLICES)] | Literal["auto"] = "auto"
    """Parts into which a rank's tokens are cut: one is exchanged while the experts work on another. `auto` takes what
    is expected to be fastest on the GPUs, and 1 elsewhere."""
    own_rows: Literal["auto", "first", "exchanged"] = "auto"
    """Rows for a rank's local experts, if tokens are cut into slices: computed apart while the first
    slice is sent (`first`), or as part of each slice (`exchanged`); `auto` is what is expected to be faster."""
    imbalance: Annotated[float, at_least(1, CAPACITY)] = 1.0
    """Rows of the rank with the most, relative to the mean: what the metric `experts/rank_load` of a run measures. The
    planner and `jaxpar.schedule` predict times with it, of layouts that split experts; no run depends on it."""
