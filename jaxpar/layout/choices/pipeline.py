"""The pipeline of a plan: its schedule as a table, and the rank and chunk of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import islice, pairwise
from pathlib import Path

from jaxpar.config import Config, ModelConfig, UserError
from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.paths import user_path
from jaxpar.config.plan import Plan
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import quoted
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.layers.declared import declare_layer
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.pages.units import plural
from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.execution.make_program import make_program
from jaxpar.pipeline.execution.program import PipelineProgram
from jaxpar.pipeline.lockstep import lockstep_ticks
from jaxpar.pipeline.schedules import Action, Kind, Order, Schedule, make_schedule, schedule_name
from jaxpar.pipeline.tables import parse_schedule


def choose_schedule(config: Config) -> Schedule:
    """The schedule that `parallel` names, for its sizes.

    Raises `UserError` where there is none of that name, or its sizes do not fit it.
    """
    parallel = config.parallel
    if parallel.pipe == 1:
        return make_schedule("one-stage", ranks=1, microbatches=parallel.microbatches)
    name = "1f1b" if parallel.schedule == "auto" else parallel.schedule
    try:
        schedule = _schedule(name, parallel.pipe, parallel.microbatches, parallel.virtual_stages)
    except ScheduleError as error:
        raise UserError(*f"parallel.schedule: {error}".split("\n")) from None
    if schedule.splits_backward and (why := unsplit_backward_reason(config)) is not None:
        raise UserError(
            f"parallel.schedule: {name} fills the bubble with gradients of the layers' matrices, but {why}; expected a "
            "schedule that does not split the backward, as 1f1b, interleaved or breadth-first"
        )
    return schedule


def unsplit_backward_reason(config: Config) -> str | None:
    """The reason why no schedule may split the backward; None if one may."""
    if why := adaptation_of(config).frozen_by:
        return f"under {why} these are frozen"
    layers = [declare_layer(model) for model in kind_models(config.model).values()]
    names = {name: None for layer in layers for part in layer.parts for name in part.factored_names}
    if names:
        by_key = " (model.low_rank)" if names.keys() & config.model.low_rank.keys() else ""
        products = f"{', '.join(names)} of its layers{by_key} are products of two matrices"
        return f"{products}: the gradient of one needs the other"
    return None


def chunk_layers(config: Config, chunks: int) -> tuple[int, ...]:
    """Layers of each of `chunks` chunks, in model order: those of `parallel.stage_layers`, or equal ones.

    Raises `UserError` where `stage_layers` has another length, or there are fewer layers than chunks.
    """
    layers, written = config.model.layers, config.parallel.stage_layers
    if written is None:
        if layers < chunks:
            raise UserError(
                f"parallel.pipe x virtual_stages: {chunks} chunks are more than the {plural(layers, 'layer')} of the "
                "model (model.layers)"
            )
        return even_chunks(layers, chunks)
    if len(written) != chunks:
        raise UserError(
            f"parallel.stage_layers: {list(written)} has {plural(len(written), 'entry')}; expected one for each of "
            f"{plural(chunks, 'chunk')} (parallel.pipe {config.parallel.pipe} x "
            f"{plural(chunks // config.parallel.pipe, 'virtual stage')})"
        )
    return written


@lru_cache(maxsize=10_000)
def even_chunks(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, as even as possible. The remainder goes to the middle chunks, one layer each: the ends have
    the embedding and the head."""
    each, over = divmod(layers, chunks)
    first = (chunks - over) // 2
    return tuple(each + (first <= chunk < first + over) for chunk in range(chunks))


def schedule_of(plan: Plan) -> Schedule:
    """The schedule of a plan."""
    return _schedule(plan.schedule, plan.axes.pipe, plan.microbatches, plan.virtual_stages)


def pipeline_program(plan: Plan) -> PipelineProgram:
    """The program that the executor runs for a plan."""
    return _program(schedule_of(plan), holds_chunks(plan), plan.pipe_ticks == "branching")


@lru_cache(maxsize=16)
def _program(schedule: Schedule, hold: bool, branching: bool) -> PipelineProgram:
    """The program of a schedule, which a plan and its memory are made from several times."""
    return make_program(schedule, hold=hold, branching=branching)


TABLE = ".csv"
"""The suffix of a schedule's name that is the path of a table."""


def table_text(file: str) -> str:
    """The text of the table that `parallel.schedule` names by its path. Raises `UserError` where it cannot be read."""
    words = f"parallel.schedule: the table {quoted(file)}"
    try:
        return read_text_file(user_path(file, words), LONGEST_WRITTEN, words, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"parallel.schedule: the table {quoted(file)} cannot be read ({error})") from error


@cache
def _table(file: str, text: str, ranks: int, microbatches: int, virtual_stages: int | None) -> Schedule:
    """The schedule in the text of a file, called by its path. Raises `ScheduleError` where it is for other sizes."""
    schedule = parse_schedule(text, name=Path(file).stem)
    actual = {"ranks": schedule.ranks, "microbatches": schedule.microbatches, "virtual stages": schedule.virtual_stages}
    wanted = {"ranks": ranks, "microbatches": microbatches, "virtual stages": virtual_stages or schedule.virtual_stages}
    for what, value in actual.items():
        if value != wanted[what]:
            raise ScheduleError(
                f"the table {quoted(file)} is for {value} {what}, and the configuration has {wanted[what]}"
            )
    for chunk, (before, after) in enumerate(pairwise(schedule.rank_of)):
        if (after - before) % ranks not in (0, 1, ranks - 1):
            raise ScheduleError(
                f"the table {quoted(file)} has chunk {chunk} on rank {before} and chunk {chunk + 1} on rank "
                f"{after}; the executor sends between neighbouring ranks alone"
            )
    return replace(schedule, name=file)


def _schedule(name: str, ranks: int, microbatches: int, virtual_stages: int | None) -> Schedule:
    if name.endswith(TABLE):
        return _table(name, table_text(name), ranks, microbatches, virtual_stages)
    return _published(name, ranks, microbatches, virtual_stages)


@cache
def _published(name: str, ranks: int, microbatches: int, virtual_stages: int | None) -> Schedule:
    return make_schedule(schedule_name(name), ranks=ranks, microbatches=microbatches, virtual_stages=virtual_stages)


def holds(schedule: str, virtual_stages: int, zero: int, shards: int) -> bool:
    """Whether a chunk's gathered weights are held while all microbatches go through it; `shards` as in `AxisSizes`."""
    return zero == 3 and shards > 1 and schedule == "breadth-first" and virtual_stages > 1


def holds_chunks(plan: Plan) -> bool:
    """Whether a chunk's weights are gathered once for all microbatches, and held while they go through it.

    With one chunk a rank all its layers would be held from the first tick to the last; ZeRO-2 does that already.
    """
    return holds(plan.schedule, plan.virtual_stages, plan.zero, plan.axes.shards)


def layer_order(plan: Plan, model: ModelConfig) -> LayerOrder:
    """The order of the layers in the stacks."""
    return order_of_chunks(schedule_of(plan), plan.stage_layers, model)


def order_of_chunks(schedule: Schedule, stage_layers: Sequence[int], model: ModelConfig) -> LayerOrder:
    """The order of the layers of `model` in the stacks, with these lengths of the chunks of `schedule`."""
    kinds = iter(layer_kinds(model))
    return LayerOrder.from_kinds(schedule.rank_of, [tuple(islice(kinds, count)) for count in stage_layers])


def forward_program(plan: Plan) -> PipelineProgram:
    """Forwards only, for evaluation: each rank runs all microbatches through its first chunk, then the next."""
    schedule = schedule_of(plan)
    orders = [_forwards(chunks, plan.microbatches) for chunks in schedule.chunks_of]
    return make_program(schedule, lockstep_ticks(orders, schedule.chunks))


def _forwards(chunks: Sequence[int], microbatches: int) -> Order:
    return tuple(Action(Kind.FORWARD, microbatch, chunk) for chunk in chunks for microbatch in range(microbatches))
