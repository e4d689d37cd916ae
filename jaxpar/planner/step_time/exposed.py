"""The share of messages that a step of jaxpar waits for, read from compiled programs.

`compiled.csv` has programs of XLA's GPU compiler, with the seconds that their messages need and those
that no compute hides (`python -m benchmarks.planner.compiled` renews it). A layout waits for the median share of the
programs of its classes on GPUs of its generation. Where no program has just these classes, the largest share of each of
them counts. Where a class was not compiled for a generation, programs of the next one of `NEAREST` stand for it, but
never with a smaller share than those of ZeRO-3 alone on its own GPUs. A slow network waits for no smaller share than a
fast one would, so that more bandwidth never costs time.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Literal, NamedTuple

from jaxpar.config import UserError
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.xla_flags import SLOW_NETWORK
from jaxpar.layout.choices.replica_sums import only_after
from jaxpar.planner.layout import Layout, Remat
from jaxpar.planner.step_time.weight_traffic import holds_chunks

COMPILED = Path(__file__).parent / "compiled.csv"
MESSAGES = ("gathers", "scatters", "sums", "host", "state", "context", "tensor", "experts", "pipe")
"""Kinds of messages, each with a column of the seconds that they need and one of those that are exposed
(`..._exposed`): gathers of weights, reduce-scatters of gradients, sums over replicas, copies of activations to and
from the host, those of the optimizer's state, and what context ranks, tensor ranks, ranks of experts and stages send
each other."""

OF_WEIGHTS = ("gathers", "scatters")
"""Those of weights and of their gradients."""

type Generation = Literal["ampere", "fast", "slow"]
"""XLA's latency estimator is for Hopper and later, so programs for Ampere are ordered otherwise. On Hopper and later,
`slow` is a network whose speed XLA gets as a flag."""
NEAREST: Mapping[str, tuple[Generation, ...]] = {
    "ampere": ("ampere", "fast", "slow"), "fast": ("fast", "slow", "ampere"), "slow": ("slow", "fast", "ampere"),
}  # fmt: skip
"""Generations in whose programs a class is looked for, in order."""

type LayoutClass = Literal["fsdp", "replicas", "tensor", "context", "experts", "copies", "ticks", "held"]
"""How weights are gathered: over data ranks alone; beside sums over replicas; beside messages of tensor ranks, of
context ranks or of ranks of experts; beside copies of activations to the host; in the ticks of a pipeline; or chunk by
chunk, which are held."""

CLASS_OF_AXIS: Mapping[str, LayoutClass] = {
    "expert": "experts", "context": "context", "tensor": "tensor", "replica": "replicas",
}  # fmt: skip
"""Classes of layouts that have several ranks on an axis."""


@dataclass(frozen=True)
class Program:
    """A compiled program: a row of the file."""

    config: str
    """The name of a file of configs/."""
    cluster: str
    overrides: tuple[str, ...]
    """`section.key=value`, as for `--set`."""
    classes: tuple[str, ...] = ()
    """Those of its layout: see `classes_of`."""
    generation: str = ""
    """A `Generation`."""
    mesh: str = ""
    """In words."""
    compute: float = 0.0
    """Seconds of all kernels of a step."""
    needed: Mapping[str, float] = field(default_factory=dict)
    """Seconds of messages by kind of `MESSAGES`."""
    exposed: Mapping[str, float] = field(default_factory=dict)
    """Those of them that no compute hides."""

    @property
    def command(self) -> str:
        """What compiles it."""
        words = ["python -m jaxpar.inspect", f"--config configs/{self.config}.yaml", f"--cluster {self.cluster}"]
        return " ".join([*words, *(f"--set {quote(one)}" for one in self.overrides)])


def read_programs(file: Path = COMPILED) -> list[Program]:
    """The rows of a file. Raises `UserError` for one that is not of this form."""
    with file.open(newline="") as stream:
        lines = (line for line in stream if not line.startswith("#"))
        return [_read(f"{file.name}: row {number}", row) for number, row in enumerate(csv.DictReader(lines), 1)]


def _read(place: str, row: Mapping[str, str]) -> Program:
    try:
        needed = {name: float(row[name] or 0) for name in MESSAGES}
        exposed = {name: float(row[f"{name}_exposed"] or 0) for name in MESSAGES}
        return Program(
            row["config"], row["cluster"], tuple(row["overrides"].split()), tuple(row["classes"].split()),
            row["generation"], row["mesh"], float(row["compute"] or 0), needed, exposed,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{place}: expected a cell in each column, numbers in those of seconds; {error}") from None


@cache
def _programs() -> tuple[Program, ...]:
    return tuple(read_programs())


def generation_of(cluster: Cluster) -> Generation:
    """Of a cluster's GPUs."""
    gpu = cluster.gpu
    if gpu.compute_capability < (9, 0):
        return "ampere"
    return "slow" if cluster.hosts > 1 and cluster.link(True).bandwidth < SLOW_NETWORK else "fast"


def classes_of(layout: Layout) -> tuple[LayoutClass, ...]:
    """Those of a layout whose weights are gathered; the first is its class among programs. The expert axis of a dense
    model is data parallelism, and not named here."""
    found: list[LayoutClass] = [kind for axis, kind in CLASS_OF_AXIS.items() if getattr(layout, axis) > 1]
    if layout.pipe > 1:
        return ("held" if holds_chunks(layout) else "ticks", *found)
    found = found or ["fsdp"]
    return ("copies", *found) if layout.offload_fraction or _copies(layout.remat) else tuple(found)


def _copies(remat: Remat) -> bool:
    return not isinstance(remat, str) and any(treatment == "offload" for _, own in remat for _, treatment in own)


class Exposed(NamedTuple):
    """The least share of messages that a step waits for."""

    gather: float = 0.0
    """Of gathers of weights."""
    scatter: float = 0.0
    """Of reduce-scatters of gradients."""
    sums: float = 1.0
    """Of sums over replicas that run beside the last microbatch's backward."""
    host: float = 0.0
    """Of copies of activations to and from the host."""

    def moved(self, change: Change) -> Exposed:
        """The shares with those of some messages larger or smaller, from none to all of them."""
        messages, by = change
        within = lambda name: min(1.0, max(0.0, getattr(self, name) + by))
        return self._replace(**{own: within(own) for name, own in FIELDS.items() if name in messages})


type Change = tuple[frozenset[str], float]
"""Kinds of `MESSAGES` that have a share, and what is added to the share of each."""

FIELDS = {"gathers": "gather", "scatters": "scatter", "sums": "sums", "host": "host"}
"""The shares by kind of `MESSAGES`."""


HIDDEN = Exposed()
"""Of software that waits for what is longer than the compute beside it, and for nothing else."""


def exposed(layout: Layout, cluster: Cluster) -> Exposed:
    """The shares of a layout of jaxpar's on a cluster."""
    return _exposed(classes_of(layout), generation_of(cluster))


@cache
def _exposed(kinds: tuple[LayoutClass, ...], generation: Generation) -> Exposed:
    gather, scatter = (share_of_classes(name, kinds, generation) for name in OF_WEIGHTS)
    return Exposed(gather, scatter, share("sums", "replicas", generation), share("host", None, generation))


def share_of_classes(
    message: str, kinds: Sequence[str], generation: str, programs: Sequence[Program] | None = None
) -> float:
    """The share of messages that a layout of several classes waits for: of programs with just these, if there are."""
    return middle(message, programs_of_classes(message, kinds, generation, programs))


def programs_of_classes(
    message: str, kinds: Sequence[str], generation: str, programs: Sequence[Program] | None = None
) -> list[Program]:
    """The programs whose median `share_of_classes` is; of several classes, those of the one with the largest share."""
    rows = _programs() if programs is None else programs
    own = _of_classes(message, kinds, generation, rows)
    return own if generation != "slow" else _larger(message, own, _of_classes(message, kinds, "fast", rows))


def _of_classes(message: str, kinds: Sequence[str], generation: str, rows: Sequence[Program]) -> list[Program]:
    alike = [one for one in rows if one.generation == generation and one.classes == tuple(kinds)]
    found = [one for one in alike if one.needed.get(message)]
    each = (found,) if found else (_of_class(message, kind, generation, rows) for kind in kinds)
    return max(each, key=lambda own: middle(message, own))


def share(message: str, kind: str | None, generation: str, programs: Sequence[Program] | None = None) -> float:
    """The share of messages of a kind of `MESSAGES` that a step waits for.

    Args:
        message: the kind.
        kind: the first class of the programs; None for all of them.
        generation: of the GPUs.
        programs: those of the file.
    """
    return middle(message, programs_of(message, kind, generation, programs))


def programs_of(
    message: str, kind: str | None, generation: str, programs: Sequence[Program] | None = None
) -> list[Program]:
    """The programs whose median `share` is."""
    rows = _programs() if programs is None else programs
    own = _of_class(message, kind, generation, rows)
    return own if generation != "slow" else _larger(message, own, _of_class(message, kind, "fast", rows))


def _of_class(message: str, kind: str | None, generation: str, rows: Sequence[Program]) -> list[Program]:
    """The programs of a generation, or those that stand for it."""
    there = {own: _having(message, kind, own, rows) for own in NEAREST[generation]}
    if (found := next(filter(None, there.values()), None)) is None:
        raise AssertionError(f"no compiled program of class {kind} has {message}")
    alone = _having(message, "fsdp", generation, rows) if message in OF_WEIGHTS and kind is not None else []
    if there[generation] or not alone:
        return found
    return _larger(message, found, alone)


def _having(message: str, kind: str | None, generation: str, rows: Sequence[Program]) -> list[Program]:
    """Programs of a class on GPUs of just this generation that send such messages."""
    own = (one for one in rows if one.generation == generation and kind in (None, one.classes[0]))
    return [one for one in own if one.needed.get(message)]


def _larger(message: str, *programs: list[Program]) -> list[Program]:
    """Of several lists of programs the first of those that wait for most."""
    return max(programs, key=lambda own: middle(message, own))


def middle(message: str, programs: Sequence[Program]) -> float:
    """The median share of a kind of messages that programs wait for."""
    return median(one.exposed[message] / one.needed[message] for one in programs)


def sums_beside(layout: Layout) -> bool:
    """Whether sums over replicas run beside the last microbatch's backward."""
    shards = layout.fsdp * layout.expert * layout.context
    return layout.sums_early and only_after(layout.pipe, layout.replica, shards, layout.zero) is None


def uncertain_shares(layout: Layout, cluster: Cluster) -> dict[str, list[Program]]:
    """Of the messages of a layout of jaxpar's that `exposed` has shares of: those whose share is of one program, or of
    programs of another generation of GPUs or networks, with these programs."""
    kinds, generation = classes_of(layout), generation_of(cluster)
    used: dict[str, list[Program]] = {}
    if layout.zero == 3 and layout.fsdp * layout.expert * layout.context > 1:
        used |= {name: programs_of_classes(name, kinds, generation) for name in OF_WEIGHTS}
    if sums_beside(layout):
        used["sums"] = programs_of("sums", "replicas", generation)
    if kinds[0] == "copies":
        used["host"] = programs_of("host", None, generation)
    theirs = lambda own: any(one.generation != generation for one in own)
    return {name: own for name, own in used.items() if len(own) == 1 or theirs(own)}
