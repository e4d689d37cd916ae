"""The work of a rank of a configuration's pipeline on a microbatch: times and bytes for `jaxpar.schedule`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean

from jaxpar.config import Config, UserError, load_config
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import Plan
from jaxpar.cost.layout import Layout
from jaxpar.layers.declared import activation_names
from jaxpar.layout.choices.pipeline import TABLE, even_chunks
from jaxpar.layout.memory.estimate import chunk_bytes, split_backward_bytes
from jaxpar.layout.resident_state import resident_share
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.search.islands import search_of
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Choice, Group
from jaxpar.planner.search.stage_groups import ranks_of
from jaxpar.planner.settings import as_remat, plan_on


@dataclass(frozen=True)
class StageWork:
    """The work on one microbatch in all layers of a rank, on average over the ranks. Times are in milliseconds."""

    schedule: str
    stages: int
    microbatches: int
    virtual: int
    numbers: Mapping[str, int | Fraction]
    """Times and bytes by the names of `Workload`."""
    chunks: tuple[Fraction, ...] | None
    """Time of each chunk relative to their mean, in the order of the model; None where all are alike."""
    ranks: tuple[Fraction, ...] | None
    """The same of each rank, for schedules that cut the layers of a rank otherwise."""


def stage_work(file: Path, overrides: Sequence[str], cluster: str) -> StageWork:
    """The work of a configuration, as the planner times it and the memory estimate counts it.

    Raises:
        UserError: jaxpar would not run it on that cluster, or its schedule is a table.
    """
    where = named_cluster(cluster)
    config, plan = plan_on(load_config(file, overrides), where)
    if plan.axes.pipe == 1:
        raise UserError(
            "parallel.pipe: 1 is no pipeline; expected at least 2 stages with --config, as in --set parallel.pipe=4"
        )
    if plan.schedule.endswith(TABLE):
        raise UserError(
            f"parallel.schedule: {plan.schedule} is a table; expected a published schedule with --config, as in "
            "--set parallel.schedule=1f1b"
        )
    search = search_of(config, where)
    layout = layout_of(config, plan, search)
    chunks, head, transfer = search.timer.chunk_times(layout)
    forward, backward, weight = (
        layout.virtual_stages * fmean(run.seconds for run in runs) for runs in zip(*chunks, strict=True)
    )
    times = {"forward": forward, "backward": backward, "weight": weight, "head": head, "transfer": transfer}
    sizes = chunk_bytes(config, plan)
    bytes_kept = {"stash": sizes.stash, "kept": split_backward_bytes(config, plan)}
    # In milliseconds, to the microsecond, as exact numbers: sums do not depend on their order.
    numbers: dict[str, int | Fraction] = {
        name: Fraction(round(1e6 * duration), 1000) for name, duration in times.items()
    }
    numbers |= {name: layout.virtual_stages * size for name, size in bytes_kept.items()} | {"sent": sizes.sent}
    by_chunk = [chunk.forward.seconds + chunk.backward.seconds for chunk in chunks]
    of_ranks = [0.0] * layout.pipe
    for rank, seconds in zip(ranks_of(layout), by_chunk, strict=True):
        of_ranks[rank] += seconds
    return StageWork(
        layout.schedule, layout.pipe, plan.microbatches, layout.virtual_stages, numbers, _relative(by_chunk),
        _relative(of_ranks),
    )  # fmt: skip


def _relative(seconds: Sequence[float]) -> tuple[Fraction, ...] | None:
    """Relative to their mean, to four digits; None where all are alike."""
    shares = tuple(Fraction(round(1e4 * one / fmean(seconds)), 10**4) for one in seconds)
    return None if len(set(shares)) == 1 else shares


def layout_of(config: Config, plan: Plan, search: Search) -> Layout:
    """The plan as the time model takes it."""
    axes, model = plan.axes, config.model
    routed = any(one.experts is not None for one in kind_models(model).values())
    shards, expert = (axes.fsdp, axes.expert) if routed else (axes.fsdp * axes.expert, 1)
    group = Group(axes.pipe, axes.replica, shards, axes.context, axes.tensor, plan.microbatch_rows, expert)
    even = even_chunks(model.layers, axes.pipe * plan.virtual_stages)
    choice = Choice(
        plan.zero, plan.context_strategy.name, plan.pipe_ends == "shared", plan.optimizer_offload != "none",
        plan.schedule, plan.virtual_stages, None if plan.stage_layers == even else plan.stage_layers,
    )  # fmt: skip
    remat = as_remat(plan.runs, activation_names(model))
    layout = search.activations(group, choice).layout(remat, config.memory.offload_fraction)
    return replace(
        layout, embedding_messages=plan.embedding_messages.name, state_messages=plan.state_messages.name,
        shard_state=plan.shard_state_over_replicas.name, resident_state=resident_share(config, plan),
    )  # fmt: skip
