"""Lower bounds of a search: what everything under a node takes at least.

No bound of a group or a choice recomputes anything, and none waits for what a schedule or a choice could avoid.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Annotated

from jaxpar.cost.operations import device_of
from jaxpar.cost.work import total
from jaxpar.hardware.sources import chosen
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.layout.choices.pipeline import holds
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.planner.memo import Memo
from jaxpar.planner.search.activation_planner import ActivationPlanner
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.search.space import Choice, Group, Space
from jaxpar.planner.settings import ONE_STAGE
from jaxpar.planner.step_time.layer_times import Layers
from jaxpar.planner.step_time.weight_traffic import DataMessages

GROUP_PARTS = ("matmuls", "attention", "other", "tensor", "exchange", "scales")
"""Parts of a step's time that no choice within a group reduces."""
SPLIT_SHARE: Annotated[float, chosen("a lower bound, under which no step is")] = 0.6
"""Least share of a layer's forward and backward that is not W, which is one of three matmuls and no attention."""


class Bounds:
    """Seconds of the nodes of one search."""

    def __init__(
        self, space: Space, timer: StepTimer,
        activations: Callable[[Group, Choice], ActivationPlanner], known: Memo,
    ):  # fmt: skip
        """`activations` is `Search.activations`; `known` has what searches on other numbers of hosts find too."""
        self.space, self.timer, self.known = space, timer, known
        self.activations = activations
        self.cluster, self.config = space.cluster, space.config
        self.alike = len(self.cluster.groups) == 1
        """Whether all hosts are of one kind."""
        self._here = Memo()

    def arithmetic(self) -> float:
        """Seconds of the model's arithmetic alone at the highest rates that kernels reach: no layout is faster."""
        config, model, reached = self.config, self.config.model, self.timer.reached(self.cluster)
        tokens, sequence = config.data.batch_size * config.data.sequence_length, config.data.sequence_length
        vocab, pairs = model.vocab or 0, causal_pairs(model, tokens, sequence)
        products = flops_per_step(model, tokens, {}, vocab, adaptation_of(config))
        attention = flops_per_step(model, tokens, pairs, vocab, adaptation_of(config)) - products
        device = device_of(self.cluster.gpu, reached)
        rate = device.matmul_rate(4 if config.precision.compute == "float32" else 2)
        rate = max(rate, device.matmul_rate(1)) if config.precision.matmul else rate
        shares = reached.attention_share, reached.attention_native_share
        return (products / rate + attention / (device.peak * max(shares))) / self.cluster.devices

    def of_strategy(self, group: Group, strategy: str, shared_embed_and_head: bool) -> float:
        """The bound of a step by `GROUP_PARTS` and the sums over replicas alone, under a context strategy."""
        key = _alike(group), strategy, shared_embed_and_head
        return self._here.of(
            key, lambda: self._of_strategy(group, strategy, shared_embed_and_head)
        ) + self._over_replicas(group)

    def _over_replicas(self, group: Group) -> float:
        """The least time of the messages over replicas, which nothing hides: of gradients, or of those and weights
        where replicas share the state."""
        if not self.alike or group.replica == 1:
            return 0.0

        def least() -> float:
            layout, layers = self.bare(group, self._any(group)).layout("none"), self._layers(group)
            sent = DataMessages(self.timer.steps(), layout, float(layers.case.item))
            trained = self.config.model.layers / group.pipe * layers.trained / group.shards
            return min(
                sent.replicas.reduce(trained),
                sent.replicas.scatter(trained) + sent.replica_weights.gather_full(trained),
            )

        key = "over replicas", group._replace(microbatch=1)
        return self.timer.steps().jitter(group.devices) * self._here.of(key, least)

    def _of_strategy(self, group: Group, strategy: str, shared_embed_and_head: bool) -> float:
        activations = self.bare(group, Choice(self.space.zeros(group)[0], strategy))
        if not self.alike:
            floor = self.timer.floor(activations.layout("none"))
            work = sum(floor[name] for name in GROUP_PARTS)
            return work + self.wait(
                group, max(0.0, work - self._head(group, shared_embed_and_head)), shared_embed_and_head
            )
        layer, _ = self._layer_work(group, activations)
        layers = self.microbatches(group) / group.pipe * self.config.model.layers * layer
        jitter = self.timer.steps().jitter(group.devices)
        return jitter * (
            layers + self._head(group, shared_embed_and_head) + self.wait(group, layers, shared_embed_and_head)
        )

    def of_choice(self, group: Group, choice: Choice) -> tuple[float, float]:
        """The bounds of a step, and of the layers of a rank, in a pipeline that never waits."""
        floor = self.timer.floor(self.bare(group, choice).layout("none"))
        # Chunks that are held are gathered once for all microbatches.
        held = floor["data"] if choice.zero == 3 else 0.0
        head = self._head(group, choice.shared_embed_and_head) if group.pipe > 1 else 0.0
        return sum(floor.values()) - held, max(0.0, sum(floor[name] for name in GROUP_PARTS) - head)

    def of_schedule(self, group: Group, choice: Choice, floor: float, layers: float) -> float:
        """The bound of a schedule of a choice of which `of_choice` is (floor, layers)."""
        family = SCHEDULES[choice.schedule]
        if choice.zero == 3 and self.alike and not holds(choice.schedule, choice.virtual_stages, 3, group.shards):
            plain = choice._replace(virtual_stages=family.virtual_stages[0], optimizer_offload=False)
            exact = lambda: sum(self.timer.floor(self.activations(group, plain).layout("none")).values())
            # Messages of weights do not depend on the rest of a schedule.
            key = group, plain._replace(schedule="", virtual_stages=1), family.splits_backward
            floor = self._here.of(key, exact)
        of_layers, of_embed_and_head, of_chunks = self._waits(group, layers, choice.shared_embed_and_head)
        share = _share_waited(choice.schedule, choice.virtual_stages)
        return floor + of_embed_and_head + share * of_layers + choice.virtual_stages * of_chunks

    def wait(self, group: Group, layers: float, shared_embed_and_head: bool) -> float:
        """The least waiting over the schedules of a group, with so many seconds of layers on a rank."""
        if group.pipe == 1:
            return 0.0
        microbatches = self.microbatches(group)

        def shares() -> dict[int, float]:
            by_virtual: dict[int, float] = {}
            for name, virtual in self.space.schedules(group.pipe, microbatches):
                by_virtual[virtual] = min(by_virtual.get(virtual, inf), _share_waited(name, virtual))
            return by_virtual

        of_layers, of_embed_and_head, of_chunks = self._waits(group, layers, shared_embed_and_head)
        least = self.known.of(("least shares waited", group.pipe, microbatches), shares)
        return of_embed_and_head + min(share * of_layers + virtual * of_chunks for virtual, share in least.items())

    def _waits(self, group: Group, layers: float, shared_embed_and_head: bool) -> tuple[float, float, float]:
        """Seconds of waiting: by the share of a chunk's layers that is waited for, for the ends, and for each chunk.

        The rank of the last chunk computes every loss, which the others wait for. It waits itself until the first
        microbatch comes through p - 1 chunks, and the first rank waits for the last gradient to come back through as
        many (without W, where that is apart). In uniform ticks a V is twice as long. Ranks that share the ends wait for
        no loss, and for the sums over all of them: in every forward and backward of a rank's chunks, and two in a loss.
        """
        if group.pipe == 1:
            return 0.0, 0.0, 0.0
        microbatches = self.microbatches(group)
        of_layers = layers * (group.pipe - 1) / microbatches
        if not shared_embed_and_head:
            return of_layers, self._head(group, shared_embed_and_head) * (group.pipe - 1), 0.0
        case = self._layers(group).case
        one = lambda: self.timer.steps().sum_over_stages(group.devices, group.pipe, case.between * case.item)
        sums = 2 * microbatches * self._here.of(("sums", _alike(group)), one)
        return of_layers, sums, sums

    def _head(self, group: Group, shared_embed_and_head: bool) -> float:
        """Seconds of head and loss of all microbatches, on average over the ranks; on hosts of several kinds those of
        the slowest, for which all wait."""
        if shared_embed_and_head:
            return self._layers(group).head(group.pipe).seconds * self.microbatches(group)
        if self.alike:
            seconds = self._layers(group).head(1).seconds
        else:
            layout = lambda: self.bare(group, self._any(group)).layout("none")
            each = lambda: [self.timer.steps(group=kind).layers(layout()).head(1) for kind in self.cluster.groups]
            seconds = self._here.of(("head", _alike(group)), lambda: max(head.seconds for head in each()))
        return seconds * self.microbatches(group) / group.pipe

    def _any(self, group: Group) -> Choice:
        """One of a group's choices, for what they have in common."""
        return Choice(self.space.zeros(group)[0], self.space.strategies(group)[0])

    def _layers(self, group: Group) -> Layers:
        """The layers of a group."""
        return self._here.of(_alike(group), lambda: self._layer_work(group, self.bare(group, self._any(group)))[1])

    def _layer_work(self, group: Group, activations: ActivationPlanner) -> tuple[float, Layers]:
        """Seconds of a microbatch in a layer, on average, and its layers; of a cluster with hosts of one kind."""

        def made() -> tuple[float, Layers]:
            layers = self.timer.steps().layers(activations.layout("none"))
            both = total([layers.forward, layers.backward])
            return both.matmul + both.attention + both.other + both.tensor + both.exchange, layers

        key = "work", group.microbatch, group.expert, group.context, group.tensor, activations.attention
        return self.known.of(key, made)

    def microbatches(self, group: Group) -> int:
        """Microbatches of a step."""
        return self.config.data.batch_size // (group.data * group.microbatch)

    def bare(self, group: Group, choice: Choice) -> ActivationPlanner:
        """The activation planner of a choice before its schedule."""
        return self.activations(group, choice._replace(schedule="1f1b" if group.pipe > 1 else ONE_STAGE))


def _share_waited(schedule: str, virtual_stages: int) -> float:
    """The least share of a stage's layers that a rank waits for while a pipeline fills and empties."""
    family = SCHEDULES[schedule]
    share = SPLIT_SHARE if family.splits_backward else 1.0
    return (2 if family.placement == "v" else 1) * share / virtual_stages


def _alike(group: Group) -> Group:
    """The same for groups that split their data ranks otherwise over replica and fsdp: no layer depends on that."""
    return Group(group.pipe, group.replica * group.fsdp, 1, *group[3:])
