"""The best layouts of a space, exactly, without timing all of them.

Best first (A*): a queue of nodes by what they take at least. A node is a group (axis sizes and microbatch) with a
context strategy, then a choice within it (ZeRO stage, where the optimizer's state is stored), then a schedule for that,
then a layout whose step is timed in full. Each node has a lower bound for everything under it:

1. **Group**: matmuls, attention, elementwise work, the messages of tensor ranks and of tokens to experts of a step that
   recomputes nothing, on a pipeline that never waits. No choice reduces them.
2. **Choice**: adds the messages of its data and context ranks, and its optimizer.
3. **Schedule**: adds the shortest bubble that its number of chunks allows, then the simulated one. Recomputation only
   lengthens the backward; it hides at most that much more of a message there.
4. **Layout**: its own time. The first to leave the queue is the best, the next one the second best.

Memory prunes too: a schedule whose layers do not fit when they recompute everything has nothing under it. Bounds
and order are checked against all layouts of small spaces in the tests.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count, product, takewhile
from typing import Annotated

from jaxpar.config import UserError
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.messages import network_of
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.described import DescribedGPU
from jaxpar.hardware.memory import pool_bytes
from jaxpar.hardware.sources import chosen
from jaxpar.layout.auto_remat import ESTIMATED
from jaxpar.layout.choices.matmul import check_matmul_units
from jaxpar.layout.memory.estimate import MemoryModel, estimate_memory
from jaxpar.planner.machine import is_cpu
from jaxpar.planner.memo import Memo, no_collection
from jaxpar.planner.search.activation_planner import ActivationPlanner
from jaxpar.planner.search.asked import ACTIVATIONS
from jaxpar.planner.search.bounds import Bounds
from jaxpar.planner.search.candidate import Candidate, Effort, Planned, key_of
from jaxpar.planner.search.heterogeneous import StepTimer
from jaxpar.planner.search.nothing_fits import nothing_fits_message
from jaxpar.planner.search.space import Choice, Group, Space
from jaxpar.planner.settings import ONE_STAGE, config_of, plan_on
from jaxpar.planner.step_time.interval import PUBLISHED
from jaxpar.planner.step_time.update import Update, update_of

type Node = Candidate | Callable[[], Iterator[Child]]
type Child = tuple[float, Node]
"""A node and its lower bound."""

NEAR: Annotated[float, chosen("a tolerance")] = 1.05
"""Ratio to the best time up to which the order of further layouts is exact."""
SURE: Annotated[float, chosen("a tolerance")] = 1 - 1e-9
"""Bounds are lowered by this much, since sums of floats depend on their order."""


@dataclass
class Search:
    """The search of one space."""

    space: Space
    hardware: HardwareModel | None = None
    limit: int | None = None
    """Bytes of a device that may be planned for; None is what the trainer's own `auto` plans for."""
    effort: Effort = field(default_factory=Effort)
    evaluated: list[Candidate] = field(default_factory=list)
    """Every layout that was timed."""
    _known: Memo = field(default_factory=Memo)
    """Results of its activation planners and bounds."""
    _within: float = float("inf")
    """Seconds above which nothing is searched, once enough different layouts were met."""
    _wanted: int = 1
    _keys: set[tuple[object, ...]] = field(default_factory=set)
    """Layouts that were met, by what distinguishes them for a user."""
    _chosen: dict[tuple[object, ...], Planned] = field(default_factory=dict)
    """The best layouts until now: slower ones of the same key are not searched."""

    @property
    def cluster(self) -> Cluster:
        """The cluster of the run."""
        return self.space.cluster

    @property
    def usable(self) -> int:
        """Bytes of a device that a layout may take; the remainder is for fragmentation and errors of the estimate."""
        return int(ESTIMATED * pool_bytes(self.cluster.device_bytes)) if self.limit is None else self.limit

    @cached_property
    def model(self) -> MemoryModel:
        """The memory of every layout."""
        return MemoryModel(self.space.config)

    @cached_property
    def update(self) -> Update:
        """The numbers that the optimizer's rule reads, writes and multiplies."""
        return update_of(self.space.config)

    @cached_property
    def reached(self) -> HardwareModel:
        """The parameters of its GPUs."""
        return hardware_of(self.cluster.gpu) if self.hardware is None else self.hardware

    @cached_property
    def timer(self) -> StepTimer:
        """Times layouts."""
        config = self.space.config
        data = config.data.sequence_length, config.data.batch_size
        return StepTimer(config.model, *data, self.cluster, self.reached, self.update)

    @cached_property
    def bounds(self) -> Bounds:
        """The least times of nodes."""
        return Bounds(self.space, self.timer, self.activations, self._known)

    def on(self, cluster: Cluster) -> Search:
        """The same search on another cluster."""
        other = Search(replace(self.space, cluster=cluster), self.hardware, self.limit)
        if self._alike(cluster):
            other.model, other._known = self.model, self._known
        return other

    def _alike(self, cluster: Cluster) -> bool:
        """Whether another cluster differs in the number of hosts alone, so that layers take the same memory there."""
        own, others = self.cluster.groups, cluster.groups
        same = len(own) == len(others) == 1 and replace(own[0], hosts=others[0].hosts) == others[0]
        links = network_of(self.cluster, self.reached) == network_of(cluster, self.reached)
        return same and links and cluster == replace(self.cluster, name=cluster.name, groups=others)

    def best(self, number: int) -> list[Planned]:
        """The best layouts that jaxpar would run, all different; fewer where there are fewer.

        The order is exact for layouts within `NEAR` of the best one; the others are the best that the search met
        until then.

        Raises:
            UserError: there is no layout, or the GPUs do not multiply in FP8; the message gives the reason.
        """
        if not is_cpu(self.cluster):
            check_matmul_units(self.space.config, DescribedGPU.from_gpu(self.cluster.gpu))
        chosen = self._chosen = {}
        self._wanted = number
        with no_collection():
            for one in self.by_time():
                planned = None if one.key in chosen else self.checked(one)
                if planned is not None:
                    chosen[one.key] = planned
                    self._within = min(self._within, NEAR * one.seconds)
                if len(chosen) == number:
                    break
        if not chosen:
            declined = self.effort.declined[0][1] if self.effort.declined else None
            raise UserError(nothing_fits_message(self, self.effort.groups, declined))
        return list(chosen.values())

    def first(self) -> Planned | None:
        """The best layout; None where there is none."""
        try:
            return self.best(1)[0]
        except UserError:
            return None

    def fastest_below(self, seconds: float) -> float | None:
        """Seconds of the best layout that jaxpar would run, if they are below `seconds`; slower ones are not timed."""
        self._within, self._wanted = seconds, 0
        with no_collection():
            below = takewhile(lambda one: one.seconds < seconds, self.by_time())
            return next((one.seconds for one in below if self.checked(one) is not None), None)

    def checked(self, candidate: Candidate) -> Planned | None:
        """The configuration and the plan of a layout, as a run would make them; None where it would refuse.

        Refused are layouts that round badly: arrays that are offloaded whole, blocks of 8-bit moments.
        """
        try:
            usable = None if self.limit is None else int(self.limit / ESTIMATED)
            config, plan = plan_on(config_of(self.space.config, candidate.layout), self.cluster, usable)
        except UserError as error:
            self.effort.declined.append((candidate, str(error)))
            return None
        memory = estimate_memory(config, plan)
        if memory.device > self.usable:
            self.effort.declined.append((candidate, "its arrays on the host are fewer than were counted on"))
            return None
        spread = None if is_cpu(self.cluster) else PUBLISHED
        return Planned(config, plan, self.cluster, replace(candidate, memory=memory), self.usable, spread=spread)

    def by_time(self) -> Iterator[Candidate]:
        """All layouts that fit, by rising time."""
        groups = self.space.groups()
        self.effort.groups = len(groups)
        order = count()
        queue: list[tuple[float, int, Node]] = []

        def push(bound: float, node: Node) -> None:
            heapq.heappush(queue, (bound, next(order), node))

        for group in groups:
            self.effort.bounded += 1
            for each in product(self.space.strategies(group), self.space.ends(group.pipe, group.tensor)):
                bound = SURE * self.bounds.of_strategy(group, *each)
                push(bound, lambda group=group, each=each: self._choices(group, *each))
        while queue:
            bound, _, node = heapq.heappop(queue)
            if isinstance(node, Candidate):
                yield node
                continue
            if bound > self._within and len(self._keys) >= self._wanted:
                continue
            for bound, child in node():
                push(bound if isinstance(child, Candidate) else SURE * bound, child)

    # ---- nodes

    def _choices(self, group: Group, strategy: str, shared_embed_and_head: bool) -> Iterator[Child]:
        if key_of(group, ONE_STAGE) in self._chosen:
            return
        for zero in self.space.zeros(group):
            self.effort.bounded += 1
            first, *others = (
                Choice(zero, strategy, shared_embed_and_head, offload) for offload in self.space.offloads()
            )
            floor, layers = self.bounds.of_choice(group, first)
            bound = floor + self.bounds.wait(group, layers, shared_embed_and_head)
            for own in (first, *others):  # state on the host only adds copies
                yield bound, partial(self._schedules, group, own, floor, layers)

    def _schedules(self, group: Group, choice: Choice, floor: float, layers: float) -> Iterator[Child]:
        schedules = self.space.schedules(group.pipe, self.bounds.microbatches(group))
        every = [choice._replace(schedule=name, virtual_stages=virtual) for name, virtual in schedules]
        least = self.bounds.bare(group, choice._replace(context_strategy="allgather")).least()
        if least.device - least.saved_activations > self.usable:
            self.effort.too_large += 1
            return
        for own in every:
            self.effort.bounded += 1
            node = lambda own=own: self._simulated(self.activations(group, own))
            yield self.bounds.of_schedule(group, own, floor, layers), node

    def _simulated(self, activations: ActivationPlanner) -> Iterator[Child]:
        if key_of(activations.group, activations.choice.schedule) in self._chosen:
            return
        least = activations.least()
        moved = least.saved_activations if activations.may_offload else 0  # all of it could go to the host
        if least.device - moved > self.usable:
            self.effort.too_large += 1
            return
        self.effort.simulated += 1
        layout = activations.layout("none")
        yield self.timer.step(layout).seconds, lambda: self._layouts(activations)
        uneven = None if layout.stage_layers else self.timer.lengths(layout)
        if uneven is not None:
            yield from self._simulated(
                self.activations(activations.group, activations.choice._replace(stage_layers=uneven))
            )

    def _layouts(self, activations: ActivationPlanner) -> Iterator[tuple[float, Candidate]]:
        for option in activations.options():
            if option.memory.host > self.host_limit:
                continue
            self.effort.timed += 1
            time = self.timer.step(option.layout)
            self.evaluated.append(Candidate(option.layout, time, option.memory))
            self._keys.add(self.evaluated[-1].key)
            yield time.seconds, self.evaluated[-1]

    def activations(self, group: Group, choice: Choice) -> ActivationPlanner:
        """The activation planner of a choice."""
        fixed = self.space.fixed
        offloads = fixed.get("offload") in (None, "activations", "all") and ACTIVATIONS not in self.space.avoided
        remat = fixed.get("remat")
        return ActivationPlanner(
            self.model, self.cluster, self.reached, group, choice, self.usable, remat, offloads, self.host_limit,
            known=self._known,
        )  # fmt: skip

    @property
    def host_limit(self) -> int:
        """Bytes of its host's memory that a GPU may have pinned."""
        return self.cluster.host_limit(self.space.config.memory.host_limit)
