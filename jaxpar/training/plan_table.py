"""The plan as a person reads it: one row per decision, with its value and why."""

from __future__ import annotations

from math import prod

import jax
import numpy as np

from jaxpar.attention import CONTEXT_STRATEGIES, ContextLayout
from jaxpar.attention.balance import imbalance, kept_pairs_per_rank
from jaxpar.config.plan import Plan
from jaxpar.layers.counting import parameter_count
from jaxpar.memory.remat import offloaded
from jaxpar.mesh.axes import AXES, SHARD_AXES
from jaxpar.mesh.parameters import map_specs
from jaxpar.mesh.placements import added_dim, bytes_per_device, local_shape
from jaxpar.pipeline.durations import Durations
from jaxpar.pipeline.simulate import simulate
from jaxpar.training.activation_memory import chunk_bytes
from jaxpar.training.batches import row_order
from jaxpar.training.host_memory import offloaded_bytes
from jaxpar.training.memory_check import mebibytes, state_bytes
from jaxpar.training.resolve import attention_requests, widest
from jaxpar.training.resting_state import resting_rows
from jaxpar.training.step import TrainStep
from jaxpar.training.tiles import loss_tiles, mlp_tiles
from pallas_kernels.masks import Mask

ZERO_WORDS = (
    "weights, gradients and optimizer state whole on each data rank",
    "optimizer state sharded",
    "gradients and optimizer state sharded",
    "weights, gradients and optimizer state sharded",
)


def plan_rows(step: TrainStep, data_description: str) -> list[tuple[str, str, str]]:
    """(name, value, why) for each decision of the plan of `step`."""
    plan, config, axes = step.plan, step.config, step.plan.axes
    rows = config.data.batch_size // axes.data
    part = config.data.sequence_length // (axes.context * axes.tensor)
    used = ", ".join(f"{axis} {axes[axis]}" for axis in AXES if axes[axis] > 1) or "one device"
    tokens = config.data.batch_size * config.data.sequence_length
    return [
        ("mesh", used, f"{axes.devices} x {step.mesh.devices.flat[0].device_kind}{_crossings(step)}"),
        (
            "parameters",
            _count(parameter_count(config.model, padded=False)),
            f"{_own_parameters(step)} per device at rest",
        ),
        ("weights", _bytes(step, "storage"), f"per device, {plan.dtypes.storage}; {plan.dtypes.compute} in matmuls"),
        ("ZeRO", str(plan.zero), _zero_words(step)),
        ("master, moments", mebibytes(state_bytes(step)), f"per device, {plan.dtypes.master}"),
        ("gradients", _bytes(step, "gradient"), f"per device, accumulated and reduced in {plan.dtypes.gradient}"),
        ("batch", f"{config.data.batch_size} x {config.data.sequence_length}", f"{tokens:,} tokens a step"),
        ("per device", f"{rows} x {part}", f"rows x sequence, in {plan.microbatches} microbatch(es)"),
        *_pipeline_rows(step),
        ("remat", plan.remat, _kept_words(plan)),
        *_offload_rows(step),
        *resting_rows(step),
        ("loss", plan.loss.name, _why(plan.loss.reason, plan.loss.rejected)),
        _tiles_row(step),
        *_attention_rows(plan),
        *_context_rows(step),
        ("optimizer", config.optimizer.name, f"{config.optimizer.schedule} schedule, {config.run.steps} steps"),
        ("data", config.data.source, data_description),
    ]


def _kept_words(plan: Plan) -> str:
    """Which activations layers keep."""
    kept = [sum(treatment != "recompute" for treatment in run.activations.values()) for run in plan.runs]
    if len(plan.runs) == 1:
        return f"keeps {kept[0]} of {len(plan.runs[0].activations)} named activations of a layer"
    parts = [f"{number} in {run.layers}" for number, run in zip(kept, plan.runs, strict=True)]
    return f"of {len(plan.runs[0].activations)} named activations keeps {', then '.join(parts)} layer(s) of a chunk"


def _attention_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """The attention backend, or those of each kind of layers."""
    choices = plan.kind_attention or {"": plan.attention}
    return [
        (f"attention {kind}".strip(), choice.name, _why(choice.reason, choice.rejected))
        for kind, choice in choices.items()
    ]


def _tiles_row(step: TrainStep) -> tuple[str, str, str]:
    """Parts of a microbatch that go through head and feed-forward in turn."""
    loss, mlp = loss_tiles(step.config), mlp_tiles(step.config, step.plan.runs, step.schedule.splits_backward)
    return "tiles", f"loss {loss.number}, MLP {mlp.number}", f"loss: {loss.why}; MLP: {mlp.why}"


def _context_rows(step: TrainStep) -> list[tuple[str, str, str]]:
    """The context strategy, and where it moves anything, how much, and how its work is balanced."""
    plan, config, choice = step.plan, step.config, step.plan.context_strategy
    rows = [("context", choice.name, _why(choice.reason, choice.rejected))]
    if plan.axes.context == 1:
        return rows
    requests = attention_requests(config, step.mesh.devices.flat[0], plan.runs)
    (strategy,) = (entry for entry in CONTEXT_STRATEGIES if entry.name == choice.name)
    request = widest(requests)
    sent = strategy.traffic(request, ContextLayout(plan.context_order, plan.ulysses))
    mask = Mask(window=request.window)
    ranks = plan.axes.context // plan.ulysses
    order = row_order(plan, config.data.sequence_length)
    busiest = imbalance(kept_pairs_per_rank(mask, None, order, ranks))
    groups = f", groups of {plan.ulysses}" if 1 < plan.ulysses < plan.axes.context else ""
    rows.append(
        (
            "tokens of a row",
            f"{plan.context_order}{groups}",
            f"a device sends {mebibytes(round(sent.forward))} forward and {mebibytes(round(sent.backward))} backward "
            f"per layer and microbatch; the busiest rank of a row without documents has {busiest:.0%} more work than "
            "the mean",
        )
    )
    return rows


def _offload_rows(step: TrainStep) -> list[tuple[str, str, str]]:
    """What lies in the host's memory between forward and backward; nothing where everything stays on the device."""
    names = offloaded(step.plan.runs)
    if not names:
        return []
    total = mebibytes(offloaded_bytes(step))
    return [("offload", total, f"{', '.join(names)} offloaded: {total} in host memory, for each device")]


def _pipeline_rows(step: TrainStep) -> list[tuple[str, str, str]]:
    """The schedule, what it costs, and what each pipeline rank keeps; nothing where there is one stage."""
    plan, schedule = step.plan, step.schedule
    if plan.axes.pipe == 1:
        return []
    layers = plan.stage_layers
    times = Durations(forward=layers, backward=[2 * n for n in layers], weight=layers)
    bubbles = {mode: simulate(schedule, times, mode=mode).bubble_fraction for mode in ("async", "lockstep")}
    runs = "branching" if plan.pipe_ticks == "branching" else "lockstep"
    own = simulate(schedule, times, mode=runs)
    sizes = chunk_bytes(step)
    slots = step.program.slots
    between = (slots["arrivals"] + slots["cotangents"] + slots["outputs"]) * sizes.sent
    rooms = slots["stash"] * sizes.stash + slots["kept"] * sizes.kept + between
    later = f", {slots['kept']} of {mebibytes(sizes.kept)} from B to W" if slots["kept"] else ""
    longest = sum(stack.rows_per_chunk for stack in step.order.stacks.values())
    padding = f"; each has memory for {longest} layers" if step.order.padded else ""
    ends = "shared by all ranks" if plan.pipe_ends == "shared" else "on the first and the last rank"
    return [
        (
            "pipeline",
            f"{plan.schedule}, {plan.axes.pipe} ranks",
            f"layers {'+'.join(map(str, layers))}{padding}; {plan.microbatches} microbatches; vocabulary {ends}",
        ),
        (
            "bubble",
            f"{float(own.bubble_fraction):.0%} expected",
            f"{plan.pipe_ticks} ticks; {float(bubbles['async']):.0%} where ranks do not wait for ticks "
            "(a backward taken for two forwards, the head for nothing)",
        ),
        (
            "activations",
            mebibytes(rooms),
            f"on each pipe rank: room for {slots['stash']} chunks of {mebibytes(sizes.stash)} from F to B{later}, and "
            f"{mebibytes(between)} on the way; in flight at most {', '.join(map(str, own.peak_in_flight))} on ranks 0 "
            f"to {plan.axes.pipe - 1}",
        ),
    ]


def _crossings(step: TrainStep) -> str:
    """Which axes have neighbours in different processes, in a job of several."""
    devices = step.mesh.devices
    owner = np.vectorize(lambda device: device.process_index)(devices)
    if owner.min() == owner.max():
        return ""
    crossing = [axis for dim, axis in enumerate(AXES) if (owner != owner.take([0], axis=dim)).any()]
    return f" in {jax.process_count()} processes; crossing between them: {', '.join(crossing)}"


def _own_parameters(step: TrainStep) -> str:
    layout, axes = step.placements.storage.layout, step.plan.axes
    sizes = map_specs(lambda spec, where: prod(local_shape(spec.shape, where, axes)), step.specs, layout)
    return _count(sum(jax.tree.leaves(sizes)))


def _bytes(step: TrainStep, role: str) -> str:
    return mebibytes(bytes_per_device(step.specs, getattr(step.placements, role), step.plan.axes))


def _zero_words(step: TrainStep) -> str:
    """What is sharded, and which matrices are not because no dim of theirs divides."""
    axes = step.plan.axes
    words = ZERO_WORDS[step.plan.zero]
    if step.plan.zero == 0 or prod(axes[axis] for axis in SHARD_AXES) == 1:
        return words
    compute, optimizer = step.placements.compute.layout, step.placements.optimizer.layout
    whole: list[str] = []

    def look(path: object, spec: object, outer: object, inner: object) -> None:
        if getattr(spec, "decay", False) and added_dim(outer, inner) is None:  # pyright: ignore[reportArgumentType]
            whole.append("/".join(str(key.key) for key in path))  # pyright: ignore

    is_leaf = lambda x: hasattr(x, "decay")
    jax.tree_util.tree_map_with_path(look, step.specs, compute, optimizer, is_leaf=is_leaf)
    return f"{words}; whole for want of a dim that divides: {', '.join(whole)}" if whole else words


def _why(reason: str, rejected: dict[str, str]) -> str:
    return "; ".join([reason, *(f"not {name}: {why}" for name, why in rejected.items())])


def _count(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return str(number)
