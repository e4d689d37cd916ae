"""The section `islands`: parts of a run that train apart and exchange weights rarely."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from jaxpar.config.bounds import BELOW_ONE, LAYERS, RANKS, SECONDS, at_least
from jaxpar.config.mappings.outer import OuterConfig


@dataclass(frozen=True)
class IslandsConfig:
    """DiLoCo (arXiv:2311.08105, arXiv:2501.18512): `parallel.islands` parts of the mesh each take steps of a local
    optimizer on their share of each batch, without a message between them, and exchange the outcome every few steps.
    The weights that are evaluated, sampled and exported are the global ones."""

    every: Annotated[int, at_least(1)] | None = None
    """Steps between two exchanges of a weight (H), from 30 to 500 in the papers; null is for runs without islands. With
    one island this is Nesterov look-ahead."""
    outer: OuterConfig = field(default_factory=OuterConfig)
    """The optimizer of the global weights."""
    fragments: Annotated[int, at_least(1, LAYERS)] = 1
    """Fragments of the weights (F), each of every F-th layer; one is exchanged each `every` / F steps."""
    delay: Annotated[int, at_least(0)] = 0
    """Steps between taking an outer gradient and taking over the global weights; its message runs beside the
    first of them. With 0 the step waits for the message."""
    mix: Annotated[float, BELOW_ONE] = 0.0
    """Share of an island's weights in its weights after an exchange; the rest is of the global ones."""
    eager: bool = False
    """Whether an island applies its outer gradient at once and those of the others a period later (arXiv:2502.12996);
    messages run beside a step."""
    wire: Literal["int8", "int4"] | None = None
    """Dtype of outer gradients in messages: codes of 8 or 4 bits with a scale for each 256 of them, summed in float32;
    null is float32."""
    offload: Literal["none", "host"] = "none"
    """Placement of the global weights and their momentum between exchanges: on the device, or in pinned host memory,
    from which the rows of a fragment are fetched in the steps that read or change them."""
    folder: str | None = None
    """A folder that all islands see, where each is a separate job with a local mesh: they exchange outer gradients
    through it (`docs/island-jobs.md`), and `run.name` is the name of an island. Null is for islands of one job."""
    quorum: Annotated[int, at_least(1, RANKS)] = 1
    """Fewest islands with whose outer gradients a round in `folder` may close, without those that are refused: the
    number of islands, if all must be in the first round."""
    wait_s: Annotated[float, at_least(0, SECONDS)] = 600.0
    """Seconds that an island waits, after its outer gradient, for those of others that work on the same round."""
    keep_rounds: Annotated[int, at_least(1)] = 4
    """Rounds before the newest outer state whose arrays stay in `folder`, so that they can be reproduced; records of
    older ones stay."""

    @property
    def overlaps_step(self) -> bool:
        """Whether the message of an outer gradient runs beside the step after it."""
        return self.eager or self.delay > 0

    @property
    def share_mesh(self) -> bool:
        """Whether the islands are parts of a job's mesh."""
        return self.every is not None and self.folder is None
