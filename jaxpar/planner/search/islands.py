"""Layouts for islands: one island is planned as a cluster, and its step has a share of each exchange.

An island has its part of the hosts and of the batch, and sends nothing in its step. Each `islands.every` steps its
devices send outer gradients of the weights that they update, over the slowest link between islands, and update the
global weights: a step takes its share of both, on average. With `islands.delay` or `eager` a message runs beside the
forward and backward of the one step that it is sent in, whatever the delay, for at most `MOST_HIDDEN`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

from jaxpar.config import Config, UserError
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.layout import Layout
from jaxpar.cost.messages import Network, Ring, network_of
from jaxpar.cost.operations import Device, device_of
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.sources import derived
from jaxpar.layout.memory.estimate import MemoryModel, estimate_memory
from jaxpar.layout.step_layout import StepLayout
from jaxpar.optim.outer import message_bytes
from jaxpar.pages.units import plural
from jaxpar.planner.search.asked import OPTIMIZER
from jaxpar.planner.search.candidate import Candidate, Planned
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.settings import plan_on
from jaxpar.planner.step_time.model import StepTime
from jaxpar.trace.clock import added
from jaxpar.trace.parts import Run

ISLANDS = "islands"
"""The part of a step's time that waits for outer gradients."""
MOVED: Annotated[float, derived("passes of an exchange, below")] = 44.0
"""Bytes of a device's memory for a weight in an exchange, in float32: both weights read and their difference written
(12), the global weight, momentum and mean read and the first two written (20), both weights read again and the
island's written (12)."""

EAGER: Annotated[float, derived("three numbers of float32, read and written")] = 24.0
"""More of them with eager updates: the moves, their momentum and the weights at the round's beginning, each read and
written; on the host the global weight is read once more."""
COPIED: Annotated[float, derived("six numbers of float32")] = 24.0
"""Bytes between device and host for a weight in an exchange: the global weight read three times, the momentum once, and
both written."""

MOST_HIDDEN: Annotated[float, derived("12.7 to 17.8 ms in compiled steps of 377 to 492 ms")] = 0.012
"""Seconds of a message beside a step that are hidden at most. XLA:GPU starts the message so late that it hides 30 ms by
XLA's own estimate, in which loops count as nothing."""


@dataclass(frozen=True)
class Exchange:
    """The exchange of outer gradients by a device and those in its position on the other islands."""

    islands: int
    config: IslandsConfig
    ring: Ring
    device: Device
    slowdown: float
    """Seconds that compute loses for each second of a message beside it."""
    host_bandwidth: float
    """Bytes a second between a device and its host's memory, each way."""

    @property
    def share(self) -> float:
        """The share of the steps in which a fragment is sent."""
        assert self.config.every is not None, "islands exchange weights"
        return self.config.fragments / self.config.every

    def message(self, weights: float) -> float:
        """Seconds of the message of one fragment, alone, from a device that updates so many weights."""
        size = self._bytes(weights)
        return self.ring.reduce(size) if self.config.wire is None else self.ring.gather(self.islands * size)

    def sent_bytes(self, weights: float) -> float:
        """Bytes that a device sends to other islands in a step, on average."""
        others = self.islands - 1
        copies = 2 * others / self.islands if self.config.wire is None else others
        return copies * self.share * self._bytes(weights)

    def joined(self, step: StepTime, weights: float) -> StepTime:
        """A step of an island with its share of the exchanges."""
        waits = self.share * added(self.message(weights), self.hidden_by(step), self.slowdown)
        assert self.config.every is not None, "islands exchange weights"
        eager = float(self.config.eager)
        update = self.device.bytes_seconds((MOVED + EAGER * eager) * weights) / self.config.every
        if self.config.offload == "host":
            update += (COPIED + 4 * eager) * weights / self.host_bandwidth / self.config.every
        spent = {**step.breakdown, "optimizer": step.breakdown["optimizer"] + update, ISLANDS: waits}
        more = {ISLANDS: waits, "optimizer": update}
        program = Run(step.program.seconds + waits + update, step.program.compute + update, more)
        program.inner.append((step.program, 1))
        return step.taking(sum(spent.values()), spent, program)

    def hidden_by(self, step: StepTime) -> float:
        """Seconds of an island's step that a message runs beside: of forward and backward, at most `MOST_HIDDEN`."""
        apart = step.breakdown["optimizer"] + step.breakdown["stragglers"]
        return min(step.seconds - apart, MOST_HIDDEN) if self.config.overlaps_step else 0.0

    def _bytes(self, weights: float) -> float:
        """Bytes of a fragment as it travels."""
        return float(message_bytes(round(weights / self.config.fragments), self.config.wire))


@dataclass(frozen=True)
class IslandTimer(StepTimer):
    """Times steps of an island with their share of the exchanges."""

    exchange: Exchange = field(kw_only=True)

    def step(self, layout: Layout, networks: Sequence[Network] | None = None) -> StepTime:
        """Does the same as `StepTimer.step`."""
        return self.exchange.joined(super().step(layout, networks), self.weights(layout))

    def alone(self, layout: Layout) -> StepTime:
        """The step without an exchange."""
        return super().step(layout)

    def weights(self, layout: Layout) -> float:
        """Weights that a device updates."""
        return self.steps().step(layout).updated


@dataclass
class IslandSearch(Search):
    """The search of the layouts of one island, which all islands have."""

    run: Config = field(kw_only=True)
    """The configuration of all islands."""
    everywhere: Cluster = field(kw_only=True)
    """All islands."""

    @cached_property
    def model(self) -> MemoryModel:
        """The memory of every layout, with the codes of all islands."""
        return MemoryModel(self._of_all_islands(self.space.config))

    @cached_property
    def timer(self) -> IslandTimer:
        """Times layouts."""
        islands, data = self.run.parallel.islands, self.space.config.data
        ring = network_of(self.everywhere, self.reached).stages(self.cluster.devices, islands)
        device = device_of(self.cluster.gpu, self.reached)
        exchange = Exchange(
            islands, self.run.islands, ring, device, self.reached.overlap_slowdown,
            self.cluster.host_bandwidth,
        )  # fmt: skip
        return IslandTimer(
            self.space.config.model, data.sequence_length, data.batch_size, self.cluster, self.reached, self.update,
            exchange=exchange,
        )  # fmt: skip

    def best(self, most: int) -> list[Planned]:
        """Like `Search.best`, as layouts of all islands."""
        plans = super().best(most)
        self.evaluated = list(map(self._of_all, self.evaluated))
        return plans

    def checked(self, candidate: Candidate) -> Planned | None:
        """Like `Search.checked`, as a run on all islands would make them."""
        one = super().checked(candidate)
        if one is None:
            return None
        try:
            config, plan = plan_on(replace(self._of_all_islands(one.config), data=self.run.data), self.everywhere)
            StepLayout(config, plan)
        except UserError as error:
            self.effort.declined.append((candidate, str(error)))
            return None
        memory = estimate_memory(config, plan)
        if memory.device > self.usable:
            self.effort.declined.append((candidate, "the message between islands does not fit beside the step"))
            return None
        candidate = replace(self._of_all(one.candidate), memory=memory)
        return replace(one, config=config, plan=plan, cluster=self.everywhere, candidate=candidate)

    def _of_all_islands(self, config: Config) -> Config:
        return replace(config, parallel=replace(config.parallel, islands=self.run.parallel.islands))

    def _of_all(self, candidate: Candidate) -> Candidate:
        return replace(candidate, layout=replace(candidate.layout, islands=self.run.parallel.islands))


def search_of(
    config: Config, cluster: Cluster, fixed: Mapping[str, str] | None = None, avoided: frozenset[str] = frozenset(),
    hardware: HardwareModel | None = None,
) -> Search:  # fmt: skip
    """The search of the layouts that a configuration allows, on the islands that it names.

    Raises:
        UserError: the cluster cannot be divided into these islands.
    """
    fixed = {} if fixed is None else fixed
    if not config.islands.share_mesh:
        return Search(Space(config, cluster, fixed, avoided), hardware)
    islands, data = config.parallel.islands, config.data
    one = replace(
        config, parallel=replace(config.parallel, islands=1), data=replace(data, batch_size=data.batch_size // islands)
    )
    # Islands exclude both: several chunks on a pipeline rank, and state on the host.
    fixed, avoided = {"virtual_stages": "1", **fixed}, avoided | {OPTIMIZER}
    space = Space(one, island_of(cluster, islands), fixed, avoided)
    return IslandSearch(space, hardware, run=config, everywhere=cluster)


def island_of(cluster: Cluster, islands: int) -> Cluster:
    """The hosts of one of so many islands, with the slowest links that any of them has: all wait for it.

    Raises:
        UserError: islands are of unlike GPUs, of parts of several hosts, or of hosts of several groups.
    """
    if islands == 1:
        return cluster
    key, gpus = f"parallel.islands: {islands}", plural(cluster.devices, "GPU")
    if cluster.bandwidth_file is not None:
        raise UserError(
            f"{key}, and {cluster.name} names measured bandwidths between hosts ({cluster.bandwidth_file}), by which "
            "islands are not planned; expected a cluster without them, or parallel.islands: 1"
        )
    each, left = divmod(cluster.devices, islands)
    part = min(each, cluster.gpus_per_host)
    if left or each % part or cluster.gpus_per_host % part:
        raise UserError(
            f"{key} does not divide the {gpus} of {cluster.name}, in hosts of {cluster.gpus_per_host}; expected "
            "islands of full hosts each, or of an even part of one"
        )
    if any(group.hosts * cluster.gpus_per_host % each for group in cluster.groups):
        raise UserError(
            f"{key} would have hosts of several groups of {cluster.name} in one island; expected a number that divides "
            "each group"
        )
    if len(cluster.gpus) > 1:
        raise UserError(
            f"{key} on {cluster.name} would have unlike GPUs ({', '.join(gpu.name for gpu in cluster.gpus)}); expected "
            "one kind, or islands as separate jobs (islands.folder)"
        )
    links = {
        name: min((getattr(group, name) for group in cluster.groups), key=lambda link: link.bandwidth)
        for name in ("node", "network", "host")
    }
    memory = min(group.host_memory for group in cluster.groups) * part // cluster.gpus_per_host
    group = replace(cluster.groups[0], hosts=each // part, host_memory=memory, **links)
    name = f"one of {islands} islands on {cluster.name}"
    return replace(cluster, name=name, gpus_per_host=part, groups=(group,), written_between=None)
