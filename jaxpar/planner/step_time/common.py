"""The common parts of layouts of one model on one cluster: layers, groups of ranks and their messages, cached."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from operator import attrgetter

from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import ModelConfig
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.layout import Layout
from jaxpar.cost.messages import Network, Ring, network_of
from jaxpar.cost.operations import device_of
from jaxpar.cost.wire_messages import WireMessages
from jaxpar.hardware.cluster import Cluster
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.planner.memo import Memo
from jaxpar.planner.step_time.layer_times import Layers
from jaxpar.planner.step_time.update import ADAMW, Update
from jaxpar.trace.clock import Clock

OF_LAYERS = (
    "microbatch", "tensor", "context", "context_strategy", "precision", "expert", "expert_exchange", "expert_capacity",
    "imbalance", "expert_slices", "exchange_dtype", "expert_quantization", "matmul_quantization", "attention",
    "expert_own_rows", "expert_loop", "state_messages",
)  # fmt: skip
"""Fields of a layout that decide the time of a layer."""
of_layers = attrgetter(*OF_LAYERS)


class Common:
    """A model on a cluster, and what several of its layouts need."""

    def __init__(
        self, model: ModelConfig, sequence: int, batch: int, cluster: Cluster, hardware: HardwareModel | None = None,
        update: Update = ADAMW, network: Network | None = None,
    ):  # fmt: skip
        """
        Args:
            model: the decoder, preset filled in and `vocab` set.
            sequence: tokens of a row.
            batch: rows of a step.
            cluster: where it runs; devices are taken in order.
            hardware: parameters of its GPUs; None means those fitted for them.
            update: the rule of the optimizer (`update.update_of`).
            network: measured bandwidths (`measured`); None means the cluster's links.
        """
        assert model.vocab is not None, "the vocabulary is known before a step is predicted"
        self.model, self.sequence, self.batch, self.vocab = model, sequence, batch, model.vocab
        self.cluster, self.update = cluster, update
        self.hardware = hardware_of(cluster.gpu) if hardware is None else hardware
        self.device = device_of(cluster.gpu, self.hardware)
        self.network = network_of(cluster, self.hardware) if network is None else network
        self.clock = Clock(self.hardware.overlap_slowdown)
        self._routes = any(own.experts is not None for own in kind_models(model).values())
        self.made = Memo()
        """Results by what they depend on."""

    def layers(self, layout: Layout) -> Layers:
        """The layers of a layout, and its head; ranks that share experts are data ranks of a model without."""
        own = layout if self._routes else replace(layout, expert=1)
        of_amax = None if own.matmul_quantization is None else layout.devices // layout.pipe
        key = Layers, of_layers(own), of_amax
        return self.made.of(
            key, lambda: Layers(self.model, self.sequence, own, self.device, self.network, self.update.lora)
        )

    def microbatches(self, layout: Layout) -> int:
        """Microbatches of a step."""
        return max(1, layout.microbatches(self.batch))

    def ring(self, ranks: int, stride: int) -> Ring:
        """Like `Network.ring`."""
        return self.made.of((Ring, ranks, stride), lambda: self.network.ring(ranks, stride))

    def sum_over_stages(self, devices: int, pipe: int, size: float) -> float:
        """Seconds of a sum of `size` bytes over the stages of a pipeline of so many devices."""
        ring = self.made.of(("stages", devices, pipe), lambda: self.network.stages(devices // pipe, pipe))
        return ring.reduce(size)

    def messages(self, wire: Transport, ranks: int, stride: int, item: float) -> WireMessages:
        """Messages of weights and gradients over so many ranks; `item` is the bytes of a stored weight."""
        key = wire, ranks, stride, item
        return self.made.of(key, lambda: WireMessages(self.network, *key))

    def jitter(self, devices: int) -> float:
        """Ratio of the step of so many devices to that of one host, from waiting for the slowest host."""
        return 1 + self.hardware.host_jitter * log2(max(1.0, devices / self.cluster.gpus_per_host))
