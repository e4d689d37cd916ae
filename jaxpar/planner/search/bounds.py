"""Lower bounds of a search: what everything under a node takes at least.

No bound of a group or a choice recomputes anything, and none waits for what a schedule or a choice could avoid.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

from jaxpar.cost.operations import device_of
from jaxpar.cost.work import total
from jaxpar.layout.choices.pipeline import holds
from jaxpar.model.flops import causal_pairs, flops_per_step
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.planner.layout import Layout
from jaxpar.planner.search.activation_planner import ActivationPlanner
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.search.space import Bare, Choice, Group, Space
from jaxpar.planner.settings import ONE_STAGE
from jaxpar.planner.step_time.layer_times import Layers

GROUP_PARTS = ("matmuls", "attention", "other", "tensor", "exchange", "scales")
"""Parts of a step's time that no choice within a group reduces."""
SPLIT_SHARE = 0.6
"""Least share of a layer's forward and backward that is not W, which is one of three matmuls and no attention."""


type Alike = tuple[int, ...]
"""What is the same for groups in which layers and ends take as long."""


class Bounds:
    """Seconds of the nodes of one search."""

    def __init__(
        self, space: Space, timer: StepTimer,
        activations: Callable[[Group, Choice], ActivationPlanner], known: dict[Hashable, Any],
    ):  # fmt: skip
        """`activations` is `Search.activations`; `known` holds what searches on other numbers of hosts find too."""
        self.space, self.timer, self.known = space, timer, known
        self.activations = activations
        self.cluster, self.config = space.cluster, space.config
        self.alike = len(self.cluster.groups) == 1
        """Whether all hosts are of one kind."""
        self._heads: dict[Alike, float] = {}
        self._sums: dict[Alike, float] = {}
        self._layers_of: dict[Alike, Layers] = {}
        self._gathered: dict[tuple[object, ...], float] = {}
        self._strategies: dict[tuple[Alike, str, bool], float] = {}

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
        shares = reached.attention_share, reached.attention_native_share
        return (products / rate + attention / (device.peak * max(shares))) / self.cluster.devices

    def of_group(self, group: Group) -> float:
        """Of the strategy whose kernels of attention are the fastest, and the faster ends."""
        ends = self.space.ends(group.pipe, group.tensor)
        return min(self.of_strategy(group, *each) for each in product(self.space.strategies(group), ends))

    def of_strategy(self, group: Group, strategy: str, shared_ends: bool) -> float:
        """Of a step by `GROUP_PARTS` alone, under a context strategy."""
        key = _alike(group), strategy, shared_ends
        if key not in self._strategies:
            self._strategies[key] = self._of_strategy(group, strategy, shared_ends)
        return self._strategies[key]

    def _of_strategy(self, group: Group, strategy: str, shared_ends: bool) -> float:
        activations = self.bare(group, Bare(self.space.zeros(group)[0], strategy))
        if self.alike:
            layer, _ = self._layer_work(group, activations)
            layers = self._microbatches(group) / group.pipe * self.config.model.layers * layer
            work = layers + self._own_head(group, shared_ends)
        else:
            work = self._work(activations.layout("none"))
            layers = work - self.head(group) / group.pipe
        return self._jitter(group) * (work + self.wait(group, layers, shared_ends))

    def of_choice(self, group: Group, bare: Bare) -> tuple[float, float]:
        """Of a step, and of the layers of a rank, in a pipeline that never waits."""
        floor = self.timer.floor(self.bare(group, bare).layout("none"))
        # Chunks that are held whole are gathered once for all microbatches.
        held = floor.breakdown["data"] if bare.zero == 3 else 0.0
        head = self._own_head(group, bare.shared_ends) if group.pipe > 1 else 0.0
        return floor.seconds - held, sum(floor.breakdown[name] for name in GROUP_PARTS) - head

    def of_schedule(self, group: Group, choice: Choice, floor: float, layers: float) -> float:
        """Of a schedule of a choice of which `of_choice` is (floor, layers)."""
        if choice.zero == 3 and self.alike and not holds(choice.schedule, choice.virtual_stages, 3, group.shards):
            splits = SCHEDULES[choice.schedule].splits_backward
            key = group, choice.context_strategy, choice.shared_ends, choice.optimizer_offload, splits
            if key not in self._gathered:  # messages of weights do not depend on the rest of a schedule
                plain = replace(choice, virtual_stages=SCHEDULES[choice.schedule].virtual_stages[0])
                self._gathered[key] = self.timer.floor(self.activations(group, plain).layout("none")).seconds
            floor = self._gathered[key]
        return floor + self.bubble(group, choice, layers)

    def bubble(self, group: Group, choice: Choice, layers: float) -> float:
        """Of a schedule's waiting, with so many seconds of layers on a rank.

        The rank of the last chunk computes every loss, which the others wait for. It waits itself until the first
        microbatch comes through p - 1 chunks, and the first rank waits for the last gradient to come back through as
        many (without W, where that is apart). In uniform ticks a V is twice as long. Ranks that share the ends wait for
        no loss, and for the sums over all of them: in every forward and backward of a rank's chunks, and two in a loss.
        """
        if group.pipe == 1:
            return 0.0
        share = self._share_waited(choice.schedule, choice.virtual_stages)
        of_layers, of_ends, of_chunks = self._waits(group, layers, choice.shared_ends)
        return of_ends + share * of_layers + choice.virtual_stages * of_chunks

    def wait(self, group: Group, layers: float, shared_ends: bool) -> float:
        """The least of `bubble` over the schedules of a group."""
        if group.pipe == 1:
            return 0.0
        microbatches = self._microbatches(group)
        key = "least shares waited", group.pipe, microbatches
        if key not in self.known:
            shares: dict[int, float] = {}
            for name, virtual in self.space.schedules(group.pipe, microbatches):
                shares[virtual] = min(shares.get(virtual, inf), self._share_waited(name, virtual))
            self.known[key] = shares
        of_layers, of_ends, of_chunks = self._waits(group, layers, shared_ends)
        return of_ends + min(share * of_layers + virtual * of_chunks for virtual, share in self.known[key].items())

    def head(self, group: Group) -> float:
        """Seconds of head and loss of all microbatches on the last rank, which do not grow with the number of layers.

        On hosts of several kinds those of the slowest, where all wait for it.
        """
        if group.pipe == 1:
            return 0.0
        key = _alike(group)
        if key not in self._heads:
            if self.alike:
                self._heads[key] = self._layers(group).head(1).seconds * self._microbatches(group)
            else:
                bare = self._any(group)
                layout, layers = bare.layout("none"), self.config.model.layers
                slowest = (self.timer.head(layout) or 0.0) * self._microbatches(group)
                fixed = 2 * self._work(layout, layers) - self._work(layout, 2 * layers)
                self._heads[key] = max(slowest, group.pipe * fixed)
        return self._heads[key]

    def _work(self, layout: Layout, layers: int | None = None) -> float:
        """Seconds of `GROUP_PARTS` in a pipeline that never waits; of another number of layers, where it is given."""
        floor = self.timer.floor(layout, layers)
        return sum(floor.breakdown[name] for name in GROUP_PARTS)

    def _own_head(self, group: Group, shared_ends: bool) -> float:
        """Seconds of head and loss of all microbatches, on average over the ranks."""
        if group.pipe > 1 and not shared_ends:
            return self.head(group) / group.pipe
        return self._layers(group).head(group.pipe).seconds * self._microbatches(group)

    def _sum_over_stages(self, group: Group) -> float:
        """Seconds of a sum over the stages of what is between two layers."""
        key = _alike(group)
        if key not in self._sums:
            case = self._layers(group).case
            devices = group.pipe * group.data * group.context * group.tensor
            self._sums[key] = self.timer.sum_over_stages(devices, group.pipe, case.between * case.item)
        return self._sums[key]

    def _layers(self, group: Group) -> Layers:
        """The layers of one of a group's choices, for what they have in common."""
        key = _alike(group)
        if key not in self._layers_of:
            _, self._layers_of[key] = self._layer_work(group, self._any(group))
        return self._layers_of[key]

    def _any(self, group: Group) -> ActivationPlanner:
        """The activation planner of one of a group's choices."""
        return self.bare(group, Bare(self.space.zeros(group)[0], self.space.strategies(group)[0]))

    def _layer_work(self, group: Group, activations: ActivationPlanner) -> tuple[float, Layers]:
        """Seconds of a microbatch in a layer, on average, and its layers; of a cluster with hosts of one kind."""
        key = "work", group.microbatch, group.expert, group.context, group.tensor, activations.attention
        if key not in self.known:
            layers = self.timer.layers(activations.layout("none"))
            both = total([layers.forward, layers.backward])
            layer = both.matmul + both.attention + both.other + both.tensor + both.exchange
            self.known[key] = layer, layers
        return self.known[key]

    def _waits(self, group: Group, layers: float, shared_ends: bool) -> tuple[float, float, float]:
        """Seconds of waiting, of so many seconds of layers on a rank: by the share of a chunk's layers that is waited
        for, for the ends, and for each chunk of a rank."""
        microbatches = self._microbatches(group)
        of_layers = layers * (group.pipe - 1) / microbatches
        if not shared_ends:
            return of_layers, self.head(group) * (1 - 1 / group.pipe), 0.0
        sums = 2 * microbatches * self._sum_over_stages(group)
        return of_layers, sums, sums

    def _share_waited(self, schedule: str, virtual_stages: int) -> float:
        """The least share of a stage's layers that a rank waits for while a pipeline fills and empties."""
        family = SCHEDULES[schedule]
        share = SPLIT_SHARE if family.splits_backward else 1.0
        long = 2 if family.placement == "v" else 1
        return long * share / virtual_stages

    def _microbatches(self, group: Group) -> int:
        return self.config.data.batch_size // (group.data * group.microbatch)

    def bare(self, group: Group, bare: Bare) -> ActivationPlanner:
        """The activation planner of a choice without virtual stages."""
        return self.activations(group, bare.choice("1f1b" if group.pipe > 1 else ONE_STAGE))

    def _jitter(self, group: Group) -> float:
        """What waiting for the slowest host multiplies a step's pipeline by, where hosts are alike."""
        if not self.alike:
            return 1.0
        return self.timer.jitter(group.pipe * group.data * group.context * group.tensor)


def _alike(group: Group) -> Alike:
    """The same for groups that split their data ranks otherwise over replica and fsdp: no layer depends on that."""
    pipe, replica, fsdp, context, tensor, microbatch, expert = group
    return pipe, replica * fsdp, context, tensor, microbatch, expert
