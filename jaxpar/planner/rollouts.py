"""A step of reinforcement by prediction: drawing answers and learning from them, in turns or on devices apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from jaxpar.compiler.cluster_parts import is_reinforcement, part_of, training_part
from jaxpar.compiler.report.screen import print_lines, table
from jaxpar.config import Config, UserError
from jaxpar.config.mappings.policy import policy_of
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.cost.layout import Layout
from jaxpar.hardware.cluster import Cluster
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.pages.units import plural, seconds, size
from jaxpar.planner.drawing import Drawer, Drawing
from jaxpar.planner.report import words
from jaxpar.planner.search.candidate import Candidate, Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.planner.settings import plan_on
from jaxpar.planner.stage_work import layout_of
from jaxpar.planner.step_time.common import Common

TURNS, LAID_OUT, APART = 1, 2, 3
"""Copies of the weights on a device that draws, while it does: in the layout of the step; in another one; on devices
apart, which get the next version meanwhile."""
SPLITS = 8
"""Splits of the devices that are tried, at most."""


@dataclass(frozen=True)
class Split:
    """A way to share the devices between sampler and trainer, with time and memory of a batch of answers."""

    sampler: int
    """Devices that only draw; 0 where all take turns."""
    copies: int
    """Copies of the weights on a device that draws, while it does."""
    drawing: Drawing
    trained: Planned
    learning: float
    """Seconds of the steps that learn from a batch, and of the log-probabilities that they need."""
    update: float
    """Seconds in which the sampler gets a version of the weights."""
    usable: int
    """Bytes of a device that may be planned for."""

    @property
    def seconds(self) -> float:
        """Seconds from one batch to the next."""
        drawn = self.drawing.seconds + self.update
        return max(drawn, self.learning) if self.sampler else drawn + self.learning

    @property
    def waiting(self) -> float:
        """Share of the devices' time that they wait for the others."""
        if not self.sampler:
            return 0.0
        trainers = self.trained.cluster.devices
        idle = self.sampler * (self.seconds - self.drawing.seconds - self.update)
        return (idle + trainers * (self.seconds - self.learning)) / (self.seconds * (self.sampler + trainers))

    @property
    def drawing_bytes(self) -> int:
        """Bytes of a device that draws."""
        made = self.drawing.bytes
        drawn = max(2 * made.weights, self.copies * made.weights + made.drawing)
        return drawn if self.sampler else drawn + self.trained.candidate.memory.optimizer

    @property
    def fits(self) -> bool:
        """Whether it may be planned for."""
        return self.drawing_bytes <= self.usable

    def settings(self, mode: str) -> list[str]:
        """The settings of it, for a configuration with this `rl.mode`."""
        layout, asked = self.drawing.layout, [f"rl.sampler.devices={self.sampler}"] if self.sampler else []
        if self.copies != TURNS:
            sizes = {axis: getattr(layout, axis) for axis in ("fsdp", "expert", "context", "tensor")}
            # Written though it is 1: a sampler without any size draws in the layout of the step.
            asked += [f"rl.sampler.{axis}={ranks}" for axis, ranks in sizes.items() if ranks > 1 or axis == "fsdp"]
        if self.sampler:
            return asked if mode != "sync" else [*asked, "rl.mode=one_step_off"]
        return [*asked, "rl.mode=sync", *(["rl.staleness=null"] if mode == "async" else [])]

    def to_dict(self) -> dict[str, float | int | bool]:
        """The split as JSON values."""
        layout = self.drawing.layout
        return {
            "sampler_devices": self.sampler, "sampler_tensor": layout.tensor, "sampler_expert": layout.expert,
            "seconds": self.seconds, "draw_s": self.drawing.seconds, "learn_s": self.learning,
            "update_s": self.update, "waiting": self.waiting, "drawing_bytes": self.drawing_bytes,
            "training_bytes": self.trained.candidate.memory.device, "fits": self.fits,
        }  # fmt: skip


def draws_here(config: Config) -> bool:
    """Whether a run draws answers on its cluster, not on a server."""
    return is_reinforcement(config) and config.rl.sampler.url is None


def splits(config: Config, cluster: Cluster, search: Search, trained: Planned) -> list[Split]:
    """Time and memory of a batch on all devices in turns, and on devices apart for each split of a host, the fastest
    first.

    Args:
        config: of the run.
        cluster: all devices.
        search: of the layout on `trained.cluster`, whose hardware is used.
        trained: the best layout of the training step; on all devices, or with `rl.sampler.devices` on what is left.

    Raises:
        UserError: the layout of `rl.sampler` fits no share of the devices.
    """
    taken = config.rl.sampler.devices
    ways = [] if taken is not None else _in_turns(config, search, trained)
    for devices in [taken] if taken is not None else _sampler_sizes(cluster):
        left = trained if taken is not None else search.on(part_of(cluster, cluster.devices - devices)).first()
        if left is not None:
            ways += _apart(config, search, left, part_of(cluster, devices))
    return sorted(_checked(ways, config), key=lambda one: (not one.fits, one.seconds))


def of_run(config: Config, cluster: Cluster) -> list[Split]:
    """Time and memory of a batch of a run as it is configured, on a cluster. Raises `UserError`."""
    training = training_part(config, cluster)
    config, plan = plan_on(config, training)
    search = Search(Space(config, training))
    layout = layout_of(config, plan, search)
    candidate = Candidate(layout, search.timer.step(layout), estimate_memory(config, plan))
    trained = Planned(config, plan, training, candidate, search.usable)
    if config.rl.sampler.devices is None:
        return _checked(_in_turns(config, search, trained)[:1], config)
    return _checked(_apart(config, search, trained, part_of(cluster, config.rl.sampler.devices)), config)


def _checked(ways: list[Split], config: Config) -> list[Split]:
    """`ways`. Raises `UserError` where none is left."""
    if not ways:
        asked = config.rl.sampler
        sizes = {"fsdp": asked.fsdp or 1, "expert": asked.expert, "context": asked.context, "tensor": asked.tensor}
        layout = ", ".join(f"{axis} {ranks}" for axis, ranks in sizes.items() if ranks > 1) or "fsdp alone"
        raise UserError(
            f"rl.sampler: {layout} splits neither the model nor the GPUs that draw evenly; expected sizes that divide "
            "them"
        )
    return ways


def print_splits(ways: Sequence[Split], mode: str, cluster: Cluster, console: Console) -> None:
    """Print a table of splits of a cluster, and the settings of the best one apart."""
    heads = "sampler", "its mesh", "draws", "token", "trainer's mesh", "learns", "update", "batch", "waits", "memory"
    made = table(heads, ("sampler", "its mesh", "trainer's mesh"), "A batch of answers")
    for one in ways:
        turns = "all, in turns" if one.copies == TURNS else "all, in turns, rl.sampler"
        made.add_row(
            plural(one.sampler, "GPU") if one.sampler else turns,
            words.axes(one.drawing.layout), seconds(one.drawing.seconds), seconds(one.drawing.token),
            words.axes(one.trained.candidate.layout), seconds(one.learning), seconds(one.update),
            seconds(one.seconds), f"{one.waiting:.0%}",
            f"{size(one.drawing_bytes)}, {size(one.trained.candidate.memory.device)}" + ("" if one.fits else " *"),
        )  # fmt: skip
    console.print(made)
    best = ways[0]
    texts = ["memory: of a GPU that draws, and of one in a step; a reference's weights come on top"]
    texts += [] if all(one.fits for one in ways) else ["* more than may be planned for on a GPU"]
    texts += ["Predicted for answers of the greatest length, without what the host does between two tokens."]
    if len(ways) > 1:
        how = "planned again with" if best.sampler else "with"
        texts.append(f"The least time that fits, {how} {' '.join(f'--set {one}' for one in best.settings(mode))}")
    if cluster.hosts > 1:
        texts.append(
            f"A job on {cluster.hosts} hosts has several processes, which draw in turns, or ask a server "
            "(rl.sampler.url): rl.sampler.devices needs one process."
        )
    print_lines(console, *texts, style="dim")


def _in_turns(config: Config, search: Search, trained: Planned) -> list[Split]:
    """All devices draw and then learn: in the layout of the step, without its stages; and in the best other one."""
    step, drawer = trained.candidate.layout, _drawer(config, search, trained.cluster)
    zero = step.zero if step.pipe == 1 else 3
    shards = step.pipe * step.replica * step.fsdp
    layout = Layout(fsdp=shards, expert=step.expert, context=step.context, tensor=step.tensor, zero=zero)
    learning = _learning(config, search, trained)
    ways = []
    if config.rl.sampler == SamplerConfig():
        drawing = drawer.drawing(layout)
        stored = trained.cluster.devices // step.tensor if step.zero and zero != 3 else 1
        update = drawer.common.ring(stored, 1).gather(drawing.bytes.weights)
        ways.append(Split(0, TURNS, drawing, trained, learning, update, search.usable))
    return ways + _best_drawing(0, LAID_OUT, drawer, trained, learning, search.usable)


def _apart(config: Config, search: Search, trained: Planned, cluster: Cluster) -> list[Split]:
    """The best layout of a sampler on separate devices, beside a trainer; none where the model cannot be split."""
    drawer, learning = _drawer(config, search, cluster), _learning(config, search, trained)
    return _best_drawing(cluster.devices, APART, drawer, trained, learning, search.usable)


def _best_drawing(
    sampler: int, copies: int, drawer: Drawer, trained: Planned, learning: float, usable: int
) -> list[Split]:
    """The fastest layout of a sampler that fits, or else the fastest one."""
    ring = drawer.common.ring(trained.cluster.devices + sampler, 1)
    link = min(ring.inside, ring.card)  # each device gets all of its weights over it
    ways = (
        Split(sampler, copies, drawing, trained, learning, drawing.bytes.weights / link, usable)
        for drawing in drawer.drawings()
    )
    return sorted(ways, key=lambda one: (not one.fits, one.drawing.seconds))[:1]


def _learning(config: Config, search: Search, trained: Planned) -> float:
    """Seconds of the steps of a batch of answers, with the forwards that score them before."""
    rl, layout = config.rl, trained.candidate.layout
    steps = rl.minibatches * rl.epochs
    scored = (steps > 1) + (policy_of(config.loss).kl != "none")
    total = steps * trained.candidate.seconds
    if scored:
        drawer = _drawer(config, search, trained.cluster)
        ranks = layout.data * layout.pipe
        rows = -(-config.data.batch_size * rl.minibatches // ranks)
        one = Layout(fsdp=ranks // layout.expert, expert=layout.expert, context=layout.context, tensor=layout.tensor)
        total += scored * rows * drawer.forward(one, config.data.sequence_length).seconds
    return total


def _drawer(config: Config, search: Search, cluster: Cluster) -> Drawer:
    data = config.data
    return Drawer(
        config, Common(config.model, data.sequence_length, data.batch_size, cluster, search.reached, search.update)
    )


def _sampler_sizes(cluster: Cluster) -> Iterator[int]:
    """Devices that a sampler may have: a share of a single host, since a job on several has several processes."""
    every = range(1, cluster.gpus_per_host) if cluster.hosts == 1 else range(0)
    stride = -(-len(every) // SPLITS) if every else 1
    yield from every[stride - 1 :: stride]
