"""What layouts of one model on one cluster have in common: layers, groups of ranks and their messages, cached."""

from __future__ import annotations

from dataclasses import replace
from math import log2

from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import ModelConfig
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.messages import Network, Ring, network_of
from jaxpar.cost.operations import device_of
from jaxpar.cost.wire_messages import WireMessages
from jaxpar.hardware.cluster import Cluster
from jaxpar.mesh.quantized.transport import Transport
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.layer_times import Layers
from jaxpar.planner.step_time.update import Update


class Common:
    """A model on a cluster, and what several of its layouts need."""

    def __init__(
        self, model: ModelConfig, sequence: int, batch: int, cluster: Cluster, hardware: HardwareModel | None,
        update: Update, network: Network | None = None,
    ):  # fmt: skip
        assert model.vocab is not None, "the vocabulary is known before a step is predicted"
        self.model, self.sequence, self.batch, self.vocab = model, sequence, batch, model.vocab
        self.cluster, self.update = cluster, update
        self.hardware = hardware_of(cluster.gpu) if hardware is None else hardware
        self.device = device_of(cluster.gpu, self.hardware)
        self.network = network_of(cluster, self.hardware) if network is None else network
        self._layers: dict[tuple[object, ...], Layers] = {}
        self._rings: dict[tuple[int, int], Ring] = {}
        self._stages: dict[tuple[int, int], Ring] = {}
        self._messages: dict[tuple[Transport, int, int, float], WireMessages] = {}
        self._routes = any(own.experts is not None for own in kind_models(model).values())
        self._per_host = cluster.gpus_per_host
        self.host_bandwidth = cluster.host_bandwidth
        """Bytes per second between a GPU and its host's memory."""

    def layers(self, layout: Layout) -> Layers:
        """The layers of a layout, and its head."""
        key = (
            layout.microbatch, layout.tensor, layout.context, layout.context_strategy, layout.precision,
            self.expert_of(layout), layout.expert_exchange, layout.expert_capacity, layout.imbalance,
            layout.expert_slices, layout.exchange_dtype, layout.expert_codes, layout.matmul_codes,
            layout.attention, layout.expert_own_rows, layout.expert_loop,
            None if layout.matmul_codes is None else layout.devices // layout.pipe,
        )  # fmt: skip
        if key not in self._layers:
            self._layers[key] = Layers(
                self.model,
                self.sequence,
                replace(layout, expert=self.expert_of(layout)),
                self.device,
                self.network,
                self.update.lora,
            )
        return self._layers[key]

    def expert_of(self, layout: Layout) -> int:
        """Ranks that share the experts; for a model without experts the axis is data parallelism."""
        return layout.expert if self._routes else 1

    def microbatches(self, layout: Layout) -> int:
        """Microbatches of a step."""
        return max(1, layout.microbatches(self.batch))

    def ring(self, ranks: int, stride: int) -> Ring:
        """Like `Network.ring`."""
        key = ranks, stride
        if key not in self._rings:
            self._rings[key] = self.network.ring(*key)
        return self._rings[key]

    def sum_over_stages(self, devices: int, pipe: int, size: float) -> float:
        """Seconds of a sum of `size` bytes over the stages of a pipeline of so many devices."""
        key = devices, pipe
        if key not in self._stages:
            self._stages[key] = self.network.stages(devices // pipe, pipe)
        return self._stages[key].reduce(size)

    def messages(self, wire: Transport, ranks: int, stride: int, item: float) -> WireMessages:
        """Messages of weights and gradients over so many ranks; `item` is the bytes of a stored weight."""
        key = wire, ranks, stride, item
        if key not in self._messages:
            self._messages[key] = WireMessages(self.network, wire, ranks, stride, item)
        return self._messages[key]

    def jitter(self, devices: int) -> float:
        """Ratio of the step of so many devices to that of one host, from waiting for the slowest host."""
        return 1 + self.hardware.host_jitter * log2(max(1.0, devices / self._per_host))
