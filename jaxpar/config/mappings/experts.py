"""The mapping `parallel.experts`: numbers of the exchange of tokens, and what the plan chooses unless it is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
