"""Facts of a layout that its memory depends on, apart from what layers keep and the slots of the pipeline."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from jaxpar.config.axes import ROUTED_AXES
from jaxpar.mesh.quantized.transport import hpz_ranks


class Case(NamedTuple):
    """Facts that memory depends on, apart from what layers keep and the slots of the pipeline."""

    pipe: int
    shards: int
    """Ranks that ZeRO shards over (`SHARD_AXES`)."""
    context: int
    tensor: int
    rows: int
    """Rows of a microbatch on a device."""
    microbatches: int
    zero: int
    slots: tuple[str, ...]
    """The kind of each slot of a chunk: enough for the layers of every chunk."""
    virtual_stages: int = 1
    state: str = "none"
    """Optimizer-state placement: `memory.optimizer_offload`."""
    resident: tuple[str, ...] = ()
    """Weights whose state stays on the device where the others' is on the host."""
    shared_embed_and_head: bool = False
    layers_on_host: bool = False
    """Whether weights and gradients of layers are on the host."""
    hpz: int = 1
    """Ranks of an hpZ group; 1 without hpZ."""
    loss_tiles: int | None = None
    """Tiles of a microbatch's tokens in the head; None for the number that the configuration gives."""
    routed: int = 1
    """Ranks among `shards` that split the matrices among which a router chooses."""
    scratch: int = 0
    """Bytes that a layer's attention takes besides its arguments and results."""
    layer_unroll: int = 1
    """Layers in a turn of the loop over layers."""
    state_replicas: int = 1
    """Replicas that share the optimizer's state; 1 where each has its own."""

    @property
    def rows_of(self) -> Counter[str]:
        """Rows of each kind in a chunk, padding included."""
        return Counter(self.slots)

    @property
    def local_rows(self) -> dict[str, int]:
        """Rows of each kind's stack on a device."""
        return {kind: rows * self.virtual_stages for kind, rows in self.rows_of.items()}

    @property
    def vocab_ranks(self) -> int:
        """Pipeline ranks that share embedding and head, in addition to the tensor ranks."""
        return self.pipe if self.shared_embed_and_head else 1

    def copies(self, routed: bool = False) -> int:
        """Shards of a weight on a device during a step: more than one with hpZ."""
        sizes = {"fsdp": self.shards // (self.routed * self.context), "context": self.context}
        sizes |= dict.fromkeys(ROUTED_AXES, self.routed)
        neighbours = hpz_ranks(self.hpz, sizes, ROUTED_AXES if routed else ())
        assert neighbours is not None, "neighbours that are whole ranks of an axis"
        return (self.shards // self.routed if routed else self.shards) // neighbours if neighbours > 1 else 1

    @property
    def alone(self) -> bool:
        """Whether a step has one microbatch and no pipeline, so that nothing accumulates."""
        return self.microbatches == 1 and self.pipe == 1
