"""A layout: everything that determines the time of a step of a given model on a given cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from jaxpar.cost.matmul_quantization import MatmulQuantization
from jaxpar.cost.operations import Attention
from jaxpar.memory.layer_shape import NOT_QUANTIZED, ExpertQuantization
from jaxpar.mesh.quantized.transport import EXACT, Transport

type RematRuns = tuple[tuple[int, tuple[tuple[str, str], ...]], ...]
"""Runs of layers: (layers of a chunk, ((activation, treatment), ...))."""
type Remat = str | RematRuns
"""A preset of `memory.remat`, or runs."""

Precision = Literal["bfloat16", "float16", "float32"]
"""Type of matmuls that do not run in FP8."""


@dataclass(frozen=True)
class Layout:
    """How one training step is spread over devices: axis sizes, microbatches, schedule, and what is kept.

    The axes are those of the mesh, outermost first: consecutive devices differ in `tensor`.
    """

    pipe: int = 1
    replica: int = 1
    fsdp: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1
    microbatch: int = 1
    """Sequences of a microbatch on one data rank (a data rank is one place of replica, fsdp and expert)."""
    schedule: str = "one-stage"
    """A name of `jaxpar.pipeline.schedules`."""
    virtual_stages: int = 1
    zero: int = 0
    """ZeRO stage: 0 nothing is sharded, 1 optimizer state, 2 gradients too, 3 weights too."""
    expert_exchange: str = "auto"
    """The value of `parallel.experts.exchange`."""
    expert_capacity: float = 2.0
    """Room of an exchange, as a multiple of an even share."""
    expert_slices: int | Literal["auto"] = "auto"
    """The value of `parallel.experts.slices`."""
    expert_own_rows: str = "auto"
    """The value of `parallel.experts.own_rows`."""
    expert_loop: bool = False
    """Whether products of experts run as a loop of plain XLA, for want of a kernel."""
    imbalance: float = 1.0
    """Rows of the fullest rank, relative to the mean."""
    exchange_dtype: str | None = None
    """The value of `parallel.quantized.tokens`."""
    embedding_messages: Literal["table", "rows"] = "table"
    """Messages of a microbatch for the embedding: as in a plan."""
    state_messages: str = "auto"
    """The value of `parallel.overlap.state_messages`."""
    shard_state: bool = False
    """Whether the optimizer's state is split over replicas too: `parallel.overlap.shard_state_over_replicas`."""
    expert_quantization: ExpertQuantization = NOT_QUANTIZED
    """How routed experts are multiplied in FP8."""
    matmul_quantization: MatmulQuantization | None = None
    """How other matmuls of layers run in FP8, and which layers do; None without `precision.matmul`."""
    context_strategy: str = "allgather"
    """`allgather`, `ring`, `ulysses` or `usp`."""
    remat: Remat = "none"
    offload_fraction: float = 0.0
    """Share of what a (microbatch, chunk) keeps that goes to the host's memory."""
    optimizer_offload: bool = False
    """Whether the optimizer's state is stored on the host and streams through the device."""
    resident_state: float = 0.0
    """Share of it that stays on the device nevertheless."""
    precision: Precision = "bfloat16"
    wire: Transport = EXACT
    """How weights and gradients travel."""
    attention: tuple[tuple[str, Attention], ...] = ()
    """The kernels of attention that run in each kind of layers; where it names none, `USUAL_ATTENTION`."""
    stage_layers: tuple[int, ...] | None = None
    """Layers of each chunk, in the order of the model; None makes them as equal as can be."""
    shared_embed_and_head: bool = False
    """Whether pipeline ranks share embedding and head: `parallel.pipe_ends` is `shared`."""
    islands: int = 1
    """Parts of the run that are laid out so, each with its part of the batch."""

    @property
    def devices(self) -> int:
        """Devices that an island takes."""
        return self.pipe * self.data * self.context * self.tensor

    @property
    def vocab_ranks(self) -> int:
        """Pipeline ranks that share embedding and head, in addition to the tensor ranks."""
        return self.pipe if self.shared_embed_and_head else 1

    @property
    def data(self) -> int:
        """Ranks with different rows (data ranks)."""
        return self.replica * self.fsdp * self.expert

    @property
    def offloads_names(self) -> bool:
        """Whether `remat` names activations that go to the host."""
        return not isinstance(self.remat, str) and any("offload" in dict(named).values() for _, named in self.remat)

    def first_layers(self, layers: int) -> Layout:
        """The layout of a chunk of so many layers: its `remat` is that of the first rows of the longest chunk."""
        if isinstance(self.remat, str):
            return self
        shortened, left = [], layers
        for count, treatments in self.remat:
            if left > 0:
                shortened.append((min(count, left), treatments))
            left -= count
        return self if tuple(shortened) == self.remat else replace(self, remat=tuple(shortened))

    def microbatches(self, global_batch: int) -> int:
        """Microbatches of a step; `global_batch` in sequences, a multiple of what all data ranks of all islands take
        at once."""
        return global_batch // (self.islands * self.data * self.microbatch)
