"""The start of a run in words: its plan in a few lines (model, mesh, batch, memory, what is unusual), and notes."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from jax.sharding import Mesh

from jaxpar.config import config_to_dict
from jaxpar.config.ramp import ramp_words
from jaxpar.hardware.nccl import faults, loaded
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.checks.experts import routers_without_gradient
from jaxpar.layout.choices.attention import unused_blocks
from jaxpar.layout.given_plan import PLANNED
from jaxpar.layout.memory.device import separate_memory
from jaxpar.layout.memory.estimate import estimate_memory, estimated_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.observe.events import RunInfo
from jaxpar.pages.units import count, plural, size
from jaxpar.training.run.plan_table import crossings, mesh_words, plan_rows
from jaxpar.training.run.run import Run

UNUSUAL = (
    "adapters", "experts", "matmuls", "messages", "collectives at once", "pipeline", "bubble", "offload",
    "optimizer offload", "weights offload", "outer state offload", "objective",
)  # fmt: skip
"""Rows of the plan's table that only some runs have and that change what a run is."""


def plan_brief(layout: StepLayout, mesh: Mesh, data_description: str) -> list[tuple[str, str]]:
    """(name, words) of about eight lines; `plan_rows` has all decisions with their reasons."""
    config, plan, axes = layout.config, layout.plan, layout.plan.axes
    device = mesh.devices.flat[0]
    rows, length = config.data.batch_size, config.data.sequence_length
    estimate, needed = (
        estimate_memory(config, plan),
        estimated_bytes(config, plan, separate_memory=separate_memory(mesh)),
    )
    parts = {"state": estimate.optimizer, "gradients": estimate.gradients, "activations": estimate.saved_activations}
    largest = ", ".join(f"{name} {size(amount)}" for name, amount in parts.items())
    zero = f"; ZeRO-{plan.zero}" if axes.devices > 1 else ""
    parameters = count(parameter_count(config.model, padded=False))
    steps = plural(config.run.steps, "step")
    before = f"; before that {words}" if (words := ramp_words(config.data)) else ""
    return [
        ("model", f"{parameters} parameters in {plural(config.model.layers, 'layer')} of width {config.model.embed}"),
        ("mesh", f"{mesh_words(plan)}: {axes.devices} x {device.device_kind}{crossings(mesh)}{zero}"),
        ("memory", f"about {size(needed)} per device: {largest} (memory.remat: {plan.remat})"),
        (
            "batch",
            f"{rows} x {length} = {rows * length:,} tokens a step; per device "
            f"{plural(rows // axes.data, 'row')} in {plural(plan.microbatches, 'microbatch')}{before}",
        ),
        ("precision", f"{plan.dtypes.compute}, master weights {plan.dtypes.master}"),
        ("optimizer", f"{config.optimizer.name}, {config.optimizer.schedule} schedule, {steps}"),
        ("data", f"{config.data.source}: {data_description}"),
        *_unusual(plan_rows(layout, mesh, data_description), on_gpu=device.platform == "gpu"),
    ]


def _unusual(rows: list[tuple[str, str, str]], on_gpu: bool) -> list[tuple[str, str]]:
    """The rows in `UNUSUAL`; and attention or a loss on a GPU without a kernel."""
    kinds = lambda name: name.partition(" of kind ")[0]
    slow = lambda name, value: on_gpu and value == "xla" and name.split()[0] in ("attention", "loss")
    return [(name, f"{value}: {why}") for name, value, why in rows if kinds(name) in UNUSUAL or slow(name, value)]


def report_first_weights(run: Run, report: Callable[[str], None]) -> None:
    """Report where the weights of a new run come from, and what it changes of that model."""
    source = run.models.first
    if source is not None:
        run.came_from = source.lineage
        changed = "; ".join(map(str, run.models.differences))
        but = f"; it has another value here: {changed}" if changed else ""
        report(f"The first weights are those of {source.path} ({source.description}){but}.")


def run_info(run: Run, first: int, folder: str, baseline: float | None) -> RunInfo:
    """The facts that listeners get at the start of a run.

    Args:
        run: the run.
        first: its first step.
        folder: its folder.
        baseline: the validation loss of a bigram model, in nats per token.
    """
    description = run.data.description
    return RunInfo(
        config=config_to_dict(run.config),
        plan=asdict(run.plan),
        rows=plan_rows(run.layout, run.mesh, description),
        brief=[*plan_brief(run.layout, run.mesh, description), *run.brief()],
        folder=folder,
        steps=run.config.run.steps,
        first_step=first,
        baseline_loss=baseline,
        came_from=run.came_from,
    )


def start_notes(run: Run, first: int, changes: Sequence[str], replanned: str | None) -> Iterator[str]:
    """Sentences about a run, as it prints them at its start.

    Args:
        run: the run.
        first: its first step.
        changes: settings that differ from those of the last start.
        replanned: the run's folder, where its plan differs from that of the last start.
    """
    config = run.config
    if config.evaluation.every and config.evaluation.batches and run.data.validation is None:
        yield f"evaluation.every is {config.evaluation.every}, and there is no validation data: nothing is evaluated."
    yield from routers_without_gradient(config.model)
    yield from faults(loaded(), platform.machine(), pipelined=run.plan.axes.pipe > 1)
    if unused := unused_blocks(run.plan, config.attention):
        yield f"{' and '.join(unused)} is not used: no layer's attention is computed by xla."
    if replanned is not None and not any(line.startswith(PLANNED) for line in changes):
        yield (
            f"The plan differs from that of the last start, though its inputs are the same: {replanned} keeps the old "
            f"one as plan-until-{first - 1}.json, and train --plan runs it."
        )
    steps, warmup = config.run.steps, config.optimizer.warmup_steps
    if changes:
        yield f"Continuing with changes: {'; '.join(changes)}."
        if any(line.startswith("run.steps:") for line in changes) and config.optimizer.decay_steps is None:
            yield f"The learning rate now ends its schedule at step {steps}; optimizer.decay_steps would keep it."
    if first > steps:
        done = "The only step is" if first == 2 else f"All {first - 1:,} steps are"
        yield f"{done} done; only the end of the run was left undone."
    elif warmup >= steps:
        yield (
            f"The whole run is warm-up: run.steps is {steps}, and the learning rate reaches its peak at step {warmup} "
            "(optimizer.warmup_steps)."
        )
