"""Lower bounds of a search: what everything under a node takes at least.

No bound of a group or a choice recomputes anything, and none waits for what a schedule or a choice could avoid.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.cost.operations import device_of
from jaxpar.cost.work import total
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.planner.layout import Layout
from jaxpar.planner.search.activation_planner import ActivationPlanner
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.search.space import Choice, Group, Space

GROUP_PARTS = ("matmuls", "attention", "other", "tensor", "exchange", "scales")
"""Parts of a step's time that no choice within a group reduces."""
SPLIT_SHARE = 0.6
"""Least share of a layer's forward and backward that is not W, which is one of three matmuls and no attention."""


class Bounds:
    """Seconds of the nodes of one search."""

    def __init__(
        self, space: Space, timer: StepTimer, mechanisms: Mechanisms,
        bare: Callable[[Group, int, str, bool], ActivationPlanner], known: dict[Hashable, Any],
    ):  # fmt: skip
        """`bare` is `Search.bare`; `known` holds what searches on other numbers of hosts find too."""
        self.space, self.timer, self.mechanisms, self.bare, self.known = space, timer, mechanisms, bare, known
        self.cluster, self.config = space.cluster, space.config
        self.alike = len(self.cluster.groups) == 1
        """Whether all hosts are of one kind."""
        self._heads: dict[Group, float] = {}

    def arithmetic(self) -> float:
        """What the model's arithmetic alone takes at the highest rates that kernels reach: no layout is faster."""
        config, model, reached = self.config, self.config.model, self.timer.reached(self.cluster)
        tokens, sequence = config.data.batch_size * config.data.sequence_length, config.data.sequence_length
        vocab, pairs = model.vocab or 0, causal_pairs(model, tokens, sequence)
        products = flops_per_step(model, tokens, {}, vocab, config.lora)
        attention = flops_per_step(model, tokens, pairs, vocab, config.lora) - products
        device = device_of(self.cluster.gpu, reached)
        rate = device.matmul_rate(4 if config.precision.compute == "float32" else 2)
        rate = max(rate, device.matmul_rate(1)) if config.precision.matmul else rate
        shares = reached.attention_share, reached.attention_first_share, reached.attention_native_share
        return (products / rate + attention / (device.peak * max(shares))) / self.cluster.devices

    def of_group(self, group: Group) -> float:
        """Of the strategy whose kernels of attention are the fastest."""
        return min(self.of_strategy(group, strategy) for strategy in self.space.strategies(group))

    def of_strategy(self, group: Group, strategy: str) -> float:
        """Of a step by `GROUP_PARTS` alone, under a context strategy."""
        activations = self.bare(group, self.space.zeros(group)[0], strategy, False)
        if self.alike:
            layer, head = self._layer_work(group, activations)
            work = self._microbatches(group) / group.pipe * (self.config.model.layers * layer + head)
        else:
            work = self._work(activations.layout("none"))
        return self._jitter(group) * (work + self.wait(group, work - self.head(group) / group.pipe))

    def of_choice(self, group: Group, zero: int, strategy: str, offload: bool) -> tuple[float, float]:
        """Of a step, and of the layers of a rank, in a pipeline that never waits."""
        floor = self.timer.floor(self.bare(group, zero, strategy, offload).layout("none"))
        # Chunks that are held whole are gathered once for all microbatches.
        held = floor.breakdown["data"] if zero == 3 else 0.0
        layers = sum(floor.breakdown[name] for name in GROUP_PARTS) - self.head(group) / group.pipe
        return floor.seconds - held, layers

    def bubble(self, group: Group, choice: Choice, layers: float) -> float:
        """Of a schedule's waiting, with so many seconds of layers on a rank.

        The rank of the last chunk computes every loss, which the others wait for. It waits itself until the first
        microbatch comes through p - 1 chunks, and the first rank waits for the last gradient to come back through as
        many (without W, where that is apart). In uniform ticks a V is twice as long.
        """
        if group.pipe == 1:
            return 0.0
        return self._waits(group, self._share_waited(choice.schedule, choice.virtual_stages), layers)

    def wait(self, group: Group, layers: float) -> float:
        """The least of `bubble` over the schedules of a group."""
        if group.pipe == 1:
            return 0.0
        microbatches = self._microbatches(group)
        key = "least share waited", group.pipe, microbatches
        if key not in self.known:
            found = self.space.schedules(group.pipe, microbatches)
            self.known[key] = min(self._share_waited(name, virtual) for name, virtual in found)
        return self._waits(group, self.known[key], layers)

    def head(self, group: Group) -> float:
        """Seconds of head and loss of all microbatches, which do not grow with the number of layers.

        On hosts of several kinds those of the slowest, where all wait for it.
        """
        if group.pipe == 1:
            return 0.0
        if group not in self._heads:
            bare = self.bare(group, self.space.zeros(group)[0], self.space.strategies(group)[0], False)
            if self.alike:
                self._heads[group] = self._layer_work(group, bare)[1] * self._microbatches(group)
            else:
                layout, layers = bare.layout("none"), self.config.model.layers
                slowest = (self.timer.head(layout) or 0.0) * self._microbatches(group)
                fixed = 2 * self._work(layout, layers) - self._work(layout, 2 * layers)
                self._heads[group] = max(slowest, group.pipe * fixed)
        return self._heads[group]

    def _work(self, layout: Layout, layers: int | None = None) -> float:
        """Seconds of `GROUP_PARTS` in a pipeline that never waits; of another number of layers, where it is given."""
        floor = self.timer.floor(layout, layers)
        return sum(floor.breakdown[name] for name in GROUP_PARTS)

    def _layer_work(self, group: Group, activations: ActivationPlanner) -> tuple[float, float]:
        """Seconds of a microbatch in a layer, on average, and in the head; of a cluster with hosts of one kind."""
        key = "work", group.microbatch, group.expert, group.context, group.tensor, activations.attention
        if key not in self.known:
            layers = self.timer.layers(activations.layout("none"))
            both = total([layers.forward, layers.backward])
            layer = both.matmul + both.attention + both.other + both.tensor + both.exchange
            self.known[key] = layer, layers.head_seconds
        return self.known[key]

    def _waits(self, group: Group, share: float, layers: float) -> float:
        """Seconds, of so many seconds of layers on a rank of which it waits for a share, and of the head."""
        waits = share * layers * (group.pipe - 1) / self._microbatches(group)
        return waits + self.head(group) * (1 - 1 / group.pipe)

    def _share_waited(self, schedule: str, virtual_stages: int) -> float:
        """The least share of a stage's layers that a rank waits for while a pipeline fills and empties."""
        family = SCHEDULES[schedule]
        share = SPLIT_SHARE if family.splits_backward else 1.0
        long = 2 if family.placement == "v" and self.mechanisms.lockstep else 1
        return long * share / virtual_stages

    def _microbatches(self, group: Group) -> int:
        return self.config.data.batch_size // (group.data * group.microbatch)

    def _jitter(self, group: Group) -> float:
        """What waiting for the slowest host multiplies a step's pipeline by, where hosts are alike."""
        if not self.alike:
            return 1.0
        return self.timer.jitter(group.pipe * group.data * group.context * group.tensor)
