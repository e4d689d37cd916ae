"""Steps of pipeline schedules on virtual CPU devices: their measured and their simulated time.

Each program has two clocks. The wall's, which other jobs on the machine disturb; and the processor's: the time for
which threads of this process computed, divided by the devices. Uniform ticks keep all devices busy, so that the two
agree on an idle machine. Devices that branch wait without computing, so the processor's clock sees their work and not
their ticks.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from benchmarks.pipeline.actions import SENDS, Action, buffers, chunk_actions, durations, end_actions
from benchmarks.turns import CLOCKS, Times, processor_name, spread, take_turns
from jaxpar.config import Config, DataConfig, MemoryConfig, ModelConfig, ParallelConfig, PrecisionConfig, UserError
from jaxpar.data import batch_rows, open_data
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.build import build_mesh
from jaxpar.pipeline.execution.make_program import make_program
from jaxpar.pipeline.execution.program import PipelineProgram
from jaxpar.pipeline.timing.simulate import simulate
from jaxpar.runtime.batch import BatchPlacer
from jaxpar.training.step.train_step import TrainStep


@dataclass(frozen=True)
class Sizes:
    """The model and batch: small enough for a CPU, with ticks of tens of milliseconds."""

    pipe: int = 2
    microbatches: int = 4
    layers: int = 4
    embed: int = 256
    mlp: int = 1024
    vocab: int = 2048
    sequence: int = 256
    rows: int = 1
    """Rows of a microbatch."""


@dataclass(frozen=True)
class Case:
    """A schedule, and how its ticks run."""

    schedule: str
    branching: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.schedule}, branching" if self.branching else self.schedule


def measure(sizes: Sizes, cases: Sequence[Case], *, rounds: int, repeats: int) -> dict[str, Any]:
    """Predicted and executed times of a step for each case, and the times of actions that they come from.

    Raises UserError where a schedule cannot have these sizes, or ranks that branch are more than the cores.
    """
    cores = len(os.sched_getaffinity(0))
    if any(case.branching for case in cases) and sizes.pipe > cores:
        raise UserError(
            f"--branching: {sizes.pipe} ranks would share {cores} cores, where a tick takes as long as all its actions "
            "together; expected no schedule (--branching alone), or --pipe up to the number of cores"
        )
    load_before = os.getloadavg()
    began = time.perf_counter()
    steps = {case: _step(sizes, case) for case in cases}
    first = next(iter(steps.values()))
    state, batch = first.residency.initial_state(), _batch(sizes, first)
    # The state has the same shapes for all schedules, and other weights in its rows take no other time.
    actions = {("ends", name): a for name, a in end_actions(first, state.master, batch, repeats=repeats).items()}
    chunk_of = {case: _chunk_name(step) for case, step in steps.items()}
    for step in {chunk_of[case]: step for case, step in steps.items()}.values():
        found = chunk_actions(step, state.master, batch, repeats=repeats)
        actions |= {(_chunk_name(step), name): action for name, action in found.items()}
    without_ticks = _without_ticks(sizes, cases[0])
    programs: dict[Any, Callable[[], Any]] = {"no ticks": lambda: without_ticks(state, batch)}
    for name, action in actions.items():
        programs[name, 0] = lambda action=action: action.run(0)
        programs[name, action.repeats] = lambda action=action: action.run(action.repeats)
    for case, step in steps.items():
        programs["buffers", case] = buffers(step, state.master, batch)
        programs[case] = lambda run=step.gradients: run(state, batch)
    for program in programs.values():
        jax.block_until_ready(program())
    compiled = time.perf_counter()
    times = take_turns(programs, rounds, sizes.pipe)
    rows = [{"schedule": case.name, "ticks": step.layout.program.ticks} for case, step in steps.items()]
    result = {
        "checks": "structure of ticks on virtual CPU devices, not the speed of GPUs",
        "machine": {"processor": processor_name(), "cores": cores, "load_before": load_before, "load": os.getloadavg()},
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "sizes": asdict(sizes),
        "rounds": rounds,
        "compile_s": compiled - began,
        "measure_s": time.perf_counter() - compiled,
        "actions_s": {"a step without ticks": {clock: spread(times[clock]["no ticks"]) for clock in CLOCKS}},
        "schedules": rows,
    }
    for clock in CLOCKS:
        seconds = _action_times(actions, times[clock])
        for (of, name), found in seconds.items():
            result["actions_s"].setdefault(f"{of}: {name}", {})[clock] = spread(found)
        for row, (case, step) in zip(rows, steps.items(), strict=True):
            row[clock] = _compare(case, step, chunk_of[case], clock, seconds, times[clock])
    return result


def _step(sizes: Sizes, case: Case, kind: type[StepLayout] = StepLayout) -> TrainStep:
    """The step of a case on its mesh. Raises UserError where the sizes do not fit the schedule."""
    config = Config(
        model=ModelConfig(
            layers=sizes.layers, embed=sizes.embed, mlp=sizes.mlp, vocab=sizes.vocab, vocab_multiple=sizes.vocab
        ),
        parallel=ParallelConfig(
            pipe=sizes.pipe, microbatches=sizes.microbatches, schedule=case.schedule,
            pipe_ticks="branching" if case.branching else "uniform",
        ),
        precision=PrecisionConfig(compute="float32"),
        memory=MemoryConfig(remat="none"),
        data=DataConfig(
            source="synthetic", sequence_length=sizes.sequence, batch_size=sizes.microbatches * sizes.rows
        ),
    )  # fmt: skip
    devices = jax.devices()[: sizes.pipe]
    plan = make_plan(resolve_config(config, len(devices)), devices[0])
    layout = kind(config, plan)
    if layout.order.padded:
        raise UserError(
            f"--layers: {sizes.layers} does not divide into the {layout.schedule.chunks} chunks of {case.schedule}, "
            f"and all schedules must have the same layers; expected a multiple of {layout.schedule.chunks}"
        )
    return TrainStep(layout, build_mesh(plan.axes, devices))


class _NoTicks(StepLayout):
    """Of a step that runs no tick."""

    @property
    def program(self) -> PipelineProgram:
        """With buffers and ends alone."""
        return make_program(self.schedule, ticks=())


def _without_ticks(sizes: Sizes, case: Case) -> Any:
    """The gradients of a step whose program has no ticks: the time of a step outside its ticks."""
    return _step(sizes, case, _NoTicks).gradients


def _batch(sizes: Sizes, step: TrainStep) -> dict[str, Any]:
    placer = BatchPlacer(step.layout.batch, step.mesh)
    data = open_data(step.layout.config.data, vocab=sizes.vocab, seed=step.layout.config.run.seed)
    return placer(batch_rows(data.train, 0, step.layout.config.data.batch_size, placer.rows))


def _chunk_name(step: TrainStep) -> str:
    """Chunks of one name take the same time."""
    layers = step.layout.order.layers_per_chunk
    size = f"{layers} layer{'s' * (layers > 1)} a chunk"
    return f"{size}, split backward" if step.layout.schedule.splits_backward else size


def _action_times(actions: Mapping[tuple[str, str], Action], times: Times) -> dict[tuple[str, str], list[float]]:
    """Seconds of one action of each kind in each round, transfers taken off where they were measured with it."""

    def one(name: tuple[str, str], action: Action) -> list[float]:
        return [
            max((long - short) / action.repeats, 0.0)
            for long, short in zip(times[name, action.repeats], times[name, 0], strict=True)
        ]

    seconds = {name: one(name, action) for name, action in actions.items()}
    sending = statistics.median(seconds["ends", "transfer"])
    return {
        name: [max(t - sending, 0.0) for t in found] if name[1] in SENDS else found for name, found in seconds.items()
    }


def _compare(
    case: Case, step: TrainStep, chunk: str, clock: str, seconds: Mapping[tuple[str, str], list[float]], times: Times
) -> dict[str, Any]:
    """A case by one clock: predicted and executed seconds of a step."""

    def predicted(pick: Callable[[list[float]], float]) -> float:
        seconds_by_part = {
            of: {name: pick(found) for (o, name), found in seconds.items() if o == of} for of in ("ends", chunk)
        }
        mode = "branching" if case.branching else "lockstep"
        simulated = simulate(
            step.layout.schedule, durations(seconds_by_part["ends"], seconds_by_part[chunk]), mode=mode
        )
        waits = case.branching and clock == "processor"
        apart = pick(times["no ticks"]) + pick(times["buffers", case])
        return apart + float(simulated.ideal if waits else simulated.makespan)

    executed, median = times[case], predicted(statistics.median)
    return {
        "buffers_s": spread(times["buffers", case]),
        "predicted_s": median,
        "executed_s": spread(executed),
        "ratio": statistics.median(executed) / median,
        "ratio_of_rounds": spread([time / predicted(lambda f, i=i: f[i]) for i, time in enumerate(executed)]),
    }
