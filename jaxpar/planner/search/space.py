"""The space of layouts: those that a configuration allows on a cluster, and which rules exclude the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, starmap
from typing import Annotated, NamedTuple

from jaxpar.attention.ulysses import exchanges
from jaxpar.config import Config
from jaxpar.config.counting import kv_heads, padded_vocab
from jaxpar.config.kinds import key_of, kind_models
from jaxpar.config.schema import ModelConfig
from jaxpar.config.schema.layout import expert_options
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.sources import chosen
from jaxpar.layers.experts.declaration import width_of
from jaxpar.layers.experts.messages import exchange_of
from jaxpar.layout.choices.pipeline import unsplit_backward_reason
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.pipeline.schedules.registry import check_sizes
from jaxpar.planner.memo import Memo
from jaxpar.planner.search.asked import ENDS, EXPERT, OPTIMIZER, SHARED_EMBED_AND_HEAD
from jaxpar.planner.settings import ONE_STAGE

SPLIT = ("pipe", "replica", "fsdp", "context", "tensor")
"""Axes that a cluster is split over; for a dense model, expert is fsdp by another name."""
SPLIT_OF_EXPERTS = ("pipe", "replica", "fsdp", "expert", "context", "tensor")
"""Axes of a model with experts."""
DATA = ("replica", "fsdp", "expert")
"""Axes that split the rows of a step."""
ALL_GATHER = "all_gather"
"""The exchange that sends all tokens to all expert ranks."""
VIRTUAL_STAGES = (1, 2, 3, 4, 6, 8)
"""Chunks on a rank that are tried, where a schedule leaves it open."""
PADDING: Annotated[float, chosen("a limit of the space")] = 0.05
"""Most layers that virtual stages of unequal lengths may add, as a share of the model: 64 chunks add 2 to 126."""


class Group(NamedTuple):
    """The facts that determine the shape of the work on a device: axis sizes and rows of a microbatch."""

    pipe: int
    replica: int
    fsdp: int
    context: int
    tensor: int
    microbatch: int
    expert: int = 1
    """Always 1 for dense models: there the axis is fsdp by another name."""

    @property
    def data(self) -> int:
        """Ranks with different rows (data ranks)."""
        return self.replica * self.fsdp * self.expert

    @property
    def devices(self) -> int:
        """Devices that it takes."""
        return self.pipe * self.data * self.context * self.tensor

    @property
    def shards(self) -> int:
        """Ranks that ZeRO shards over."""
        return self.fsdp * self.expert * self.context


class Choice(NamedTuple):
    """The choices within a group, except what layers keep."""

    zero: int
    context_strategy: str
    shared_embed_and_head: bool = False
    """Whether pipeline ranks share embedding and head."""
    optimizer_offload: bool = False
    schedule: str = ONE_STAGE
    virtual_stages: int = 1
    stage_layers: tuple[int, ...] | None = None
    """Layers of each chunk, where they are not as equal as can be."""


@dataclass(frozen=True)
class Space:
    """All layouts of `config` on `cluster` that keep to `fixed`."""

    config: Config
    """With the vocabulary set."""
    cluster: Cluster
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Parts of a layout that are fixed: a name of `FIXABLE` to its value."""
    avoided: frozenset[str] = frozenset()
    """Mechanisms that are left out (`search.asked`)."""

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Axes that the cluster is split over."""
        routed = any(own.experts is not None for own in kind_models(self.config.model).values())
        return SPLIT_OF_EXPERTS if routed else SPLIT

    def groups(self) -> list[Group]:
        """Every group that the rules of a configuration allow, by axis sizes and microbatch."""
        batch = self.config.data.batch_size
        allowed = [
            [
                size
                for size in divisors(self.cluster.devices)
                if not (name in DATA and batch % size) and not any(self._broken_by_axis(name, size))
            ]
            for name in self.axes
        ]
        groups = []
        for sizes in splits(self.cluster.devices, allowed):
            named = dict(zip(self.axes, sizes, strict=True))
            if any(self._broken_together(named)):
                continue
            rows = batch // _data(named)
            for microbatch in divisors(rows):
                group = Group(**named, microbatch=microbatch)
                if not any(self._microbatch_broken(group, rows // microbatch)):
                    groups.append(group)
        return groups

    def nearest(self) -> Counter[frozenset[str]]:
        """The smallest sets of rules that groups break, and how many groups each set alone excludes."""
        excluded: Counter[frozenset[str]] = Counter()
        for sizes in splits(self.cluster.devices, [divisors(self.cluster.devices)] * len(self.axes)):
            named = dict(zip(self.axes, sizes, strict=True))
            broken = [*chain(*starmap(self._broken_by_axis, named.items())), *self._broken_together(named)]
            rows = max(1, self.config.data.batch_size // _data(named))
            for microbatch in divisors(rows):
                group = Group(**named, microbatch=microbatch)
                excluded[frozenset((*broken, *self._microbatch_broken(group, rows // microbatch)))] += 1
        least = min(map(len, excluded))
        return Counter({rules: number for rules, number in excluded.items() if len(rules) == least})

    @cached_property
    def _known(self) -> Memo:
        return Memo()

    def schedules(self, pipe: int, microbatches: int) -> list[tuple[str, int]]:
        """(name, virtual stages) of the schedules that can run."""
        if pipe == 1:
            return [(ONE_STAGE, 1)]
        return self._known.of((pipe, microbatches), lambda: list(self._schedules(pipe, microbatches)))

    def _schedules(self, pipe: int, microbatches: int) -> Iterator[tuple[str, int]]:
        wanted, virtual = self.fixed.get("schedule"), self._number("virtual_stages")
        for name, family in SCHEDULES.items():
            if family.one_rank or name in self.avoided or (wanted is not None and name != wanted):
                continue
            if family.splits_backward and unsplit_backward_reason(self.config) is not None:
                continue  # `choose_schedule` refuses it
            low, high = family.virtual_stages
            for stages in VIRTUAL_STAGES if virtual is None else (virtual,):
                if stages < low or (high is not None and stages > high):
                    continue
                if self._wasteful(pipe * stages) and (stages > 1 or self.config.model.layers < pipe):
                    continue
                with suppress(ScheduleError):
                    check_sizes(name, pipe, microbatches, stages)
                    yield name, stages

    def _wasteful(self, chunks: int) -> bool:
        """Whether chunks of equal lengths, padded to the longest, would hold `PADDING` more layers than the model: a
        shorter chunk has the memory of the longest, and saves no time where all wait."""
        layers = self.config.model.layers
        return chunks > layers or -(-layers // chunks) * chunks > (1 + PADDING) * layers

    def zeros(self, group: Group) -> list[int]:
        """The distinct ZeRO stages.

        Without ranks to shard over all are stage 0. Stage 0 over fsdp is replica by another name, and under a pipeline
        stage 2 is stage 1 (`mesh.placements`).
        """
        fixed = self._number("zero")
        if group.shards == 1:
            return [0] if fixed in (None, 0) else []
        if fixed is not None:
            return [fixed]
        if self.config.parallel.quantized.weights is not None:
            return [1, 3] if group.pipe > 1 else [1, 2, 3]
        stages = {0, 1, 2, 3} - ({0} if group.fsdp > 1 and "fsdp" not in self.fixed else set())
        return sorted(stages - ({2} if group.pipe > 1 else set()))

    def strategies(self, group: Group) -> list[str]:
        """The possible context strategies."""
        if group.context == 1:
            return ["allgather"]
        key = "strategies", group.context, group.tensor
        return self._known.of(key, lambda: self._strategies(group.context, group.tensor))

    def _strategies(self, context: int, tensor: int) -> list[str]:
        fixed, heads = self.fixed.get("context_strategy"), self.config.model.heads // tensor
        strategies = ["allgather", "ring"]
        if exchanges(heads, context) is None:
            strategies.append("ulysses")
        at_hand = max(1, self.cluster.gpus_per_host // tensor)
        if any(context % n == heads % n == at_hand % n == 0 for n in range(2, context)):
            strategies.append("usp")
        return [name for name in strategies if fixed in (None, name) and name not in self.avoided]

    def offloads(self) -> tuple[bool, ...]:
        """Whether the optimizer's state may be stored on the host."""
        fixed = self.fixed.get("offload")
        if fixed is None:
            return (False,) if OPTIMIZER in self.avoided else (False, True)
        return (fixed in ("optimizer", "all"),)

    def ends(self, pipe: int, tensor: int) -> tuple[bool, ...]:
        """Whether so many pipeline ranks may share embedding and head (`parallel.pipe_ends`)."""
        if pipe == 1:
            return (False,)
        fixed, refused = self.fixed.get("pipe_ends"), bool(self._broken_by_shared_embed_and_head(pipe, tensor))
        return tuple(one for one in (False, True) if fixed in (None, ENDS[one]) and not (one and refused))

    def _broken_by_shared_embed_and_head(self, pipe: int, tensor: int) -> str:
        """The rule that is broken when these ranks of a pipeline share embedding and head; empty if none is. Hosts of
        several kinds cannot, since sums over all stages come with it."""
        if SHARED_EMBED_AND_HEAD in self.avoided:
            return f"--avoid {SHARED_EMBED_AND_HEAD}"
        vocab = padded_vocab(self.config.model)
        if vocab % (pipe * tensor):
            return f"the padded vocabulary ({vocab}) over pipe x tensor (pipe_ends is shared)"
        return "--fix pipe_ends=shared (hosts are of several kinds)" if self.cluster.is_heterogeneous else ""

    def _number(self, name: str) -> int | None:
        return int(self.fixed[name]) if name in self.fixed else None

    def _broken_by_axis(self, name: str, size: int) -> Iterator[str]:
        """Rules that the size of one axis breaks."""
        model = self.config.model
        if name in self.fixed and size != self._number(name):
            yield f"--fix {name}={self.fixed[name]}"
        if name == "pipe" and size > model.layers:
            yield f"model.layers ({model.layers}) over pipe"
        if name == "tensor":
            yield from broken_by_tensor(model, size)
        if name == EXPERT:
            if EXPERT in self.avoided and size > 1:
                yield f"--avoid {EXPERT}"
            for kind, own in kind_models(model).items():
                if own.experts is not None and own.experts.count % size:
                    yield f"{key_of(kind, 'experts')}.count ({own.experts.count}) over expert"

    def _broken_together(self, sizes: Mapping[str, int]) -> Iterator[str]:
        """Rules that several axes break together."""
        data = self.config.data
        pipe, tensor, context = sizes["pipe"], sizes["tensor"], sizes["context"]
        if data.batch_size % _data(sizes):
            split = "replica, fsdp and expert" if EXPERT in self.axes else "replica and fsdp"
            yield f"data.batch_size ({data.batch_size}) over {split}"
        if data.sequence_length % (2 * context * tensor if context > 1 else tensor):
            yield f"data.sequence_length ({data.sequence_length}) over context and tensor"
        if not self.ends(pipe, tensor):
            yield self._broken_by_shared_embed_and_head(pipe, tensor)
        crosses = self._crosses_kinds(sizes)
        if crosses is not None:
            yield crosses
        if EXPERT in self.axes:
            yield from self._broken_by_exchange(sizes)

    def _broken_by_exchange(self, sizes: Mapping[str, int]) -> Iterator[str]:
        """Broken rules of the exchange of tokens, as `parallel.experts` asks for it."""
        options, model = expert_options(self.config.parallel), self.config.model
        if sizes["expert"] == 1 and options.slices not in ("auto", 1):
            yield f"parallel.experts.slices ({options.slices}), which takes expert above 1"
        if options.own_rows != "first":
            return
        key = "parallel.experts.own_rows (first), which takes"
        if sizes["expert"] == 1:
            yield f"{key} expert above 1"
            return
        if sizes["tensor"] > 1:
            yield f"{key} tensor 1"
        if options.slices == 1:
            yield f"{key} parallel.experts.slices above 1"
        asked, room = options.exchange, options.capacity
        for own in kind_models(model).values():
            if own.experts and exchange_of(asked, own.experts, room, sizes["expert"], sizes["tensor"])[0] == ALL_GATHER:
                yield f"{key} another exchange than {ALL_GATHER}"
                return

    def _crosses_kinds(self, sizes: Mapping[str, int]) -> str | None:
        """Where hosts differ, all devices of a stage are of one kind: only pipeline edges cross (Holmes).

        Without a pipeline all wait for the slowest kind.
        """
        if not self.cluster.is_heterogeneous:
            return None
        if self.cluster.gpus_per_host % sizes["tensor"]:
            return "tensor ranks within one host (hosts are of several kinds)"
        if sizes["pipe"] > 1 and self.cluster.stage_groups(sizes["pipe"]) is None:
            return "pipeline stages on one kind of host"
        return None

    def _microbatch_broken(self, group: Group, microbatches: int) -> Iterator[str]:
        model = self.config.model
        if "microbatch" in self.fixed and group.microbatch != self._number("microbatch"):
            yield f"--fix microbatch={self.fixed['microbatch']}"
        if group.pipe > 1 and microbatches < group.pipe:
            yield f"a microbatch for every stage (data.batch_size is {self.config.data.batch_size})"
        elif group.pipe <= model.layers and not self.schedules(group.pipe, microbatches):
            held = [name for name in ("schedule", "virtual_stages") if name in self.fixed]
            yield " and ".join(f"--fix {name}={self.fixed[name]}" for name in held) or "the schedules' microbatches"
        asked = expert_options(self.config.parallel).slices
        if asked != "auto" and group.expert > 1:
            tokens = group.microbatch * self.config.data.sequence_length // (group.context * group.tensor)
            if tokens % asked:
                yield f"parallel.experts.slices ({asked}) over the tokens of a rank"
        if not self.zeros(group):
            yield f"--fix zero={self.fixed['zero']}"
        if model.heads % group.tensor == 0 and not self.strategies(group):
            yield f"--fix context_strategy={self.fixed['context_strategy']}"


def broken_by_tensor(model: ModelConfig, tensor: int) -> Iterator[str]:
    """Rules of a model that so many tensor ranks break."""
    kv = kv_heads(model)
    if model.heads % tensor or (kv % tensor and tensor % kv):
        yield f"model.heads ({model.heads}, {kv} of keys) over tensor"
    for kind, own in kind_models(model).items():
        if own.experts is None:
            if own.mlp % tensor:
                yield f"{key_of(kind, 'mlp')} ({own.mlp}) over tensor"
            continue
        if (width := width_of(own)) % tensor:
            yield f"{key_of(kind, 'experts')}.width ({width}) over tensor"
    if padded_vocab(model) % tensor:
        yield f"the padded vocabulary ({padded_vocab(model)}) over tensor"


def _data(sizes: Mapping[str, int]) -> int:
    """Data ranks of axis sizes."""
    return sizes["replica"] * sizes["fsdp"] * sizes.get("expert", 1)


def splits(devices: int, allowed: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Every ordered factorization of `devices` into factors of which each is among those `allowed` in its place."""
    first, *others = allowed
    if not others:
        if devices in first:
            yield (devices,)
        return
    for factor in first:
        if devices % factor == 0:
            for rest in splits(devices // factor, others):
                yield (factor, *rest)


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
