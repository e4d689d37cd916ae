"""Kernels and formats of a run for one choice of one group on the cluster's GPUs, and their memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema.layout import expert_options
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.layout import Layout, Remat
from jaxpar.cost.matmul_quantization import MatmulQuantization
from jaxpar.cost.operations import Attention
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layout.choices.attention import backends_on, scratch_on
from jaxpar.layout.choices.embedding import embedding_messages
from jaxpar.layout.choices.experts import loops_on
from jaxpar.layout.choices.matmul import expert_quantization
from jaxpar.layout.choices.matmul_quantization import matmul_quantization
from jaxpar.layout.choices.pipeline import even_chunks, holds
from jaxpar.layout.memory.case import Case
from jaxpar.layout.memory.estimate import MemoryModel
from jaxpar.layout.memory.slots import Slots, pipeline_slots
from jaxpar.memory.layer_shape import ExpertQuantization
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.planner.machine import is_cpu
from jaxpar.planner.memo import Memo
from jaxpar.planner.search.space import Choice, Group
from jaxpar.planner.step_time.chunks import Kinds, chunk_slots


@dataclass(frozen=True)
class Kernels:
    """One choice of one group, and what the trainer would take for it."""

    model: MemoryModel
    cluster: Cluster
    hardware: HardwareModel
    """Parameters of its GPUs and links."""
    group: Group
    choice: Choice
    known: Memo = field(default_factory=Memo, repr=False, compare=False, kw_only=True)
    """Results shared by all choices of this model and cluster: most depend on a part of them only."""

    def layout(self, remat: Remat, share: float = 0.0) -> Layout:
        """The layout in which layers keep what `remat` names. Of a state on the host all is counted as resident, which
        is the fastest, until `options` knows what fits."""
        choice, asked = self.choice, self.model.config.parallel
        shape = self.group._asdict() | choice._asdict()
        return Layout(
            **shape, remat=remat, offload_fraction=share,
            resident_state=float(choice.optimizer_offload and not is_cpu(self.cluster)),
            precision=self.model.config.precision.compute,
            wire=Transport(asked.quantized.weights, asked.quantized.gradients),
            expert_exchange=asked.experts.exchange, expert_capacity=asked.experts.capacity,
            imbalance=asked.experts.imbalance, expert_slices=expert_options(asked).slices,
            expert_own_rows=asked.experts.own_rows,
            expert_loop=self._expert_loop and not self.expert_quantization.by_kernel,
            exchange_dtype=asked.quantized.tokens, expert_quantization=self.expert_quantization,
            matmul_quantization=self.matmul_quantization, embedding_messages=self._embedding_messages,
            state_messages="allgather" if asked.overlap.state_messages == "allgather" else "auto",
            shard_state=self._state_replicas > 1, attention=self.attention,
        )  # fmt: skip

    @cached_property
    def case(self) -> Case:
        """Facts of the group and the choice that memory depends on."""
        group, choice = self.group, self.choice
        return self._bare_case._replace(
            zero=choice.zero, virtual_stages=choice.virtual_stages,
            state="host" if choice.optimizer_offload else "none",
            scratch=self._scratch, routed=group.expert,
            shared_embed_and_head=choice.shared_embed_and_head, state_replicas=self._state_replicas,
        )  # fmt: skip

    @property
    def _bare_case(self) -> Case:
        """The case of a configuration with these axes, whatever the layers keep."""
        group = self.group
        sizes = group.pipe, group.shards, group.context, group.tensor, group.microbatch
        return Case(*sizes, self.microbatches, 0, self.kinds)

    @cached_property
    def kinds(self) -> Kinds:
        """Kinds of the slots of a chunk."""
        chunks, lengths = self.group.pipe * self.choice.virtual_stages, self.choice.stage_layers
        model = self.model.config.model
        return chunk_slots(model, even_chunks(model.layers, chunks) if lengths is None else lengths)

    @property
    def microbatches(self) -> int:
        """Microbatches of a step."""
        return self.model.config.data.batch_size // (self.group.data * self.group.microbatch)

    @property
    def held(self) -> bool:
        """Whether whole chunks are held while microbatches go through them."""
        choice = self.choice
        return holds(choice.schedule, choice.virtual_stages, choice.zero, self.group.shards)

    @cached_property
    def slots(self) -> Slots:
        """Slots of the pipeline."""
        group, choice = self.group, self.choice
        return pipeline_slots(choice.schedule, group.pipe, self.microbatches, choice.virtual_stages, self.held)

    @property
    def attention(self) -> tuple[tuple[str, Attention], ...]:
        """The kernels of attention that a run takes; none on CPUs, whose share is of whatever runs there.

        cuDNN's packed form takes scratch memory for each row, so there the choice depends on them.
        """
        group, strategy = self.group, self.choice.context_strategy
        rows = group.microbatch if self.model.config.data.packed else 0
        gpu = lambda: min(self.cluster.gpus, key=lambda gpu: gpu.compute_capability)
        make = lambda: tuple(backends_on(self.model.alike(self._bare_case), gpu(), strategy).items())
        return self._on_gpus(("attention", rows, group.context, group.tensor, strategy), make, ())

    @property
    def _scratch(self) -> int:
        """Scratch memory of a layer's attention."""
        group, strategy = self.group, self.choice.context_strategy
        key = "scratch", group.microbatch, group.context, group.tensor, strategy
        return self.known.of(key, lambda: scratch_on(self.model.alike(self._bare_case), self.cluster.gpu, strategy))

    @property
    def _state_replicas(self) -> int:
        """Replicas that share the optimizer's state: all, where that is asked for and there is any to share."""
        asked = self.model.config.parallel.overlap.shard_state_over_replicas is True
        return self.group.replica if asked and self.choice.zero else 1

    @property
    def _embedding_messages(self) -> Literal["table", "rows"]:
        """The messages of the embedding that the trainer would choose; rows that are named are possible on some layouts
        only, and left to its choice."""
        group, zero = self.group, self.choice.zero

        def make() -> Literal["table", "rows"]:
            config = self.model.config
            asked = "table" if config.parallel.overlap.embedding_messages == "table" else "auto"
            overlap = replace(config.parallel.overlap, embedding_messages=asked)
            changed = replace(config, parallel=replace(config.parallel, zero=zero, overlap=overlap))
            axes = AxisSizes(group.pipe, group.replica, group.fsdp, group.expert, group.context, group.tensor)
            gpu = DescribedGPU.from_gpu(self.cluster.gpu)
            return embedding_messages(changed, axes, gpu, group.microbatch, self.cluster).name

        sends = zero >= 2 and group.pipe == 1 and group.shards > 1
        return self._on_gpus(("embedding messages", group, zero), make, "table") if sends else "table"

    @property
    def expert_quantization(self) -> ExpertQuantization:
        """How routed experts are multiplied in FP8."""
        config, tensor = self.model.config, self.group.tensor
        asked = lambda: replace(config, parallel=replace(config.parallel, tensor=tensor))
        return self.known.of(
            ("codes", tensor), lambda: expert_quantization(asked(), DescribedGPU.from_gpu(self.cluster.gpu))
        )

    @property
    def _expert_loop(self) -> bool:
        """Whether a run multiplies experts in a loop."""
        group, config = self.group, self.model.config
        axes = lambda: AxisSizes(expert=group.expert, context=group.context, tensor=group.tensor)
        make = lambda: loops_on(config, axes(), self.cluster.gpu, group.microbatch)
        key = "expert loop", group.microbatch, group.expert, group.context, group.tensor
        return self._on_gpus(key, make, False)

    @property
    def matmul_quantization(self) -> MatmulQuantization | None:
        """How other matmuls of layers run in FP8."""
        offload, chunks = (
            "host" if self.choice.optimizer_offload else "none",
            self.group.pipe * self.choice.virtual_stages,
        )
        key = offload, self.choice.schedule if self.held else None, self.kinds, chunks
        return self.known.of(("matmul", key), lambda: matmul_quantization(self.model.config, self.cluster.gpu, *key))

    def _on_gpus[Result](self, key: tuple, make: Callable[[], Result], on_cpus: Result) -> Result:
        return on_cpus if is_cpu(self.cluster) else self.known.of(key, make)
