"""The plan as a table: one row per decision, with its value and its reason."""

from __future__ import annotations

from math import prod

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jax.tree_util import KeyPath

from jaxpar.attention.balance import imbalance, visible_pairs_per_rank
from jaxpar.config import Config
from jaxpar.config.counting import window_of
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import Plan
from jaxpar.config.ramp import ramp_words
from jaxpar.hardware.catalogue import gpu_of
from jaxpar.layers.counting import factor_parameters, parameter_count
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.layout.choices.experts import expert_rows
from jaxpar.layout.choices.matmul import matmul_rows, routed_choice, tiled_choice
from jaxpar.layout.choices.reasons import choice_rows
from jaxpar.layout.memory.estimate import chunk_bytes, offloaded_bytes
from jaxpar.layout.memory.state_bytes import frozen_bytes, state_bytes
from jaxpar.layout.memory.state_storage import offload_rows
from jaxpar.layout.step_layout import StepLayout
from jaxpar.memory.remat import offloaded
from jaxpar.mesh.axes import MESH_AXES, ROUTED_AXES, SHARD_AXES
from jaxpar.mesh.parameters import ParamSpec, Specs, map_specs, subtree_like
from jaxpar.mesh.placements import REPLICAS, Placement, bytes_per_device, local_shape
from jaxpar.mesh.quantized.transport import hpz_ranks
from jaxpar.mesh.rules import mesh_axes_of
from jaxpar.pages.units import count, plural, size
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import simulate
from pallas_kernels.masks import Mask

ZERO_WORDS = (
    "weights, gradients and optimizer state whole on each data rank",
    "optimizer state sharded",
    "gradients and optimizer state sharded",
    "weights, gradients and optimizer state sharded",
)


def plan_rows(layout: StepLayout, mesh: Mesh, data_description: str) -> list[tuple[str, str, str]]:
    """(name, value, reason) for each decision of the plan of `layout`."""
    plan, config, axes, roles = layout.plan, layout.config, layout.plan.axes, layout.placements
    device = mesh.devices.flat[0]
    rows = config.data.batch_size // axes.data
    part = config.data.sequence_length // (axes.context * axes.tensor)
    tokens = config.data.batch_size * config.data.sequence_length
    before = f"; before that {words}" if (words := ramp_words(config.data)) else ""
    return [
        ("mesh", mesh_words(plan), f"{axes.devices} x {device.device_kind}{crossings(mesh)}"),
        (
            "parameters",
            count(parameter_count(config.model, padded=False)),
            f"{_local_parameters(layout)} per device at rest",
        ),
        *_factors_row(layout),
        *expert_rows(config, plan),
        (
            "weights",
            _bytes(layout, layout.specs, roles.storage),
            f"per device, {plan.dtypes.storage}; {plan.dtypes.compute} in matmuls",
        ),
        ("ZeRO", str(plan.zero), _zero_words(layout)),
        ("master, moments", size(state_bytes(layout) - frozen_bytes(layout)), f"per device, {plan.dtypes.master}"),
        (
            "gradients",
            _bytes(layout, layout.trained, roles.gradient),
            f"per device, accumulated and reduced in {plan.dtypes.gradient}",
        ),
        *matmul_rows(
            config, gpu_of(device.device_kind), plan, tiled_choice(config, device), routed_choice(config, device, plan)
        ),
        *_message_row(layout),
        (
            "batch",
            f"{config.data.batch_size} x {config.data.sequence_length}",
            f"{plural(tokens, 'token')} a step{before}",
        ),
        ("per device", f"{rows} x {part}", f"rows x sequence, in {plural(plan.microbatches, 'microbatch')}"),
        *_pipeline_rows(layout),
        ("remat", plan.remat, _saved_words(plan)),
        *_offload_rows(layout),
        *offload_rows(layout, device.device_kind),
        *choice_rows(plan),
        *_limits_rows(config, plan),
        *_balance_row(layout),
        *_objective_row(layout),
        ("optimizer", config.optimizer.name, _optimizer_words(layout)),
        ("data", config.data.source, data_description),
    ]


def _optimizer_words(layout: StepLayout) -> str:
    """Its schedule, and the dtype in which matrices are multiplied."""
    config = layout.config
    words = f"{config.optimizer.schedule} schedule, {plural(config.run.steps, 'step')}"
    multiplies = any(one.rule.matmuls for one in layout.optimizer.weights)
    return f"{words}; matmuls of updates in {layout.plan.dtypes.matrix}" if multiplies else words


def mesh_words(plan: Plan) -> str:
    """`fsdp 2, tensor 4`."""
    return ", ".join(f"{axis} {plan.axes[axis]}" for axis in MESH_AXES if plan.axes[axis] > 1) or "one device"


def _message_row(layout: StepLayout) -> list[tuple[str, str, str]]:
    """Transport of weights and gradients; empty if nothing is quantized or has a second copy."""
    plan = layout.plan
    named = ("weights", plan.dtypes.weight_message), ("gradients", plan.dtypes.gradient_message)
    quantized = [f"{name} {dtype}" for name, dtype in named if dtype]
    ways = [f"hpZ over {plan.hpz} ranks", *_expert_copies(layout)]
    ways = ways if plan.hpz > 1 else []
    if not quantized and not ways:
        return []
    exact = ["norms, biases and routers exact"] if quantized else []
    return [("messages", ", ".join(quantized) or "exact", ", ".join((ways or ["in one message"]) + exact))]


def _expert_copies(layout: StepLayout) -> list[str]:
    """A phrase for the hpZ shard of the weights of experts, where it is not that of other weights."""
    plan = layout.plan
    ranks = hpz_ranks(plan.hpz, dict(plan.axes), ROUTED_AXES)
    routed = any(one.experts is not None for one in kind_models(layout.config.model).values())
    if not routed or ranks == plan.hpz:
        return []
    if ranks == 1:
        return ["none of experts' weights, which are gathered from all their ranks with each use"]
    return [f"{ranks} ranks for experts' weights"]


def _limits_rows(config: Config, plan: Plan) -> list[tuple[str, str, str]]:
    """Settings of XLA that are not its defaults."""
    rows = []
    if plan.collectives_at_once > 1:
        asked = config.parallel.overlap.collectives_at_once == plan.collectives_at_once
        reason = "parallel.overlap.collectives_at_once asks for it" if asked else "one may be that of the islands"
        rows.append(("collectives at once", str(plan.collectives_at_once), reason))
    if plan.merged_matmuls_mb == 0:
        rows.append(("merged matmuls", "none", "each product of a layer fills the GPU by itself"))
    return rows


def _factors_row(layout: StepLayout) -> list[tuple[str, str, str]]:
    """The trained factors; empty where all weights are trained."""
    adaptation = adaptation_of(layout.config)
    if adaptation.frozen_by is None:
        return []
    trained = count(factor_parameters(layout.config.model, adaptation))
    return [("adapters", trained, f"in factors; the other weights are frozen ({adaptation.frozen_by})")]


def _objective_row(layout: StepLayout) -> list[tuple[str, str, str]]:
    """The objective, where it has settings."""
    description = layout.objective.description
    return [("objective", layout.config.loss.name, description)] if description else []


def _saved_words(plan: Plan) -> str:
    """A phrase for the activations that layers save."""
    numbers = [sum(treatment != "recompute" for treatment in run.activations.values()) for run in plan.runs]
    if len(plan.runs) == 1:
        return f"keeps {numbers[0]} of {len(plan.runs[0].activations)} named activations of a layer"
    parts = [f"{number} in {plural(run.layers, 'layer')}" for number, run in zip(numbers, plan.runs, strict=True)]
    return f"of {len(plan.runs[0].activations)} named activations of a chunk it keeps {', then '.join(parts)}"


def _balance_row(layout: StepLayout) -> list[tuple[str, str, str]]:
    """Balance of attention's work over context ranks; empty if there is one."""
    plan, config = layout.plan, layout.config
    if plan.axes.context == 1:
        return []
    windows = [window_of(model) for model in kind_models(config.model).values()]
    mask = Mask(config.model.causal, None if None in windows else max(filter(None, windows)))
    ranks = plan.axes.context // plan.ulysses
    order = layout.batch.order
    assert order is not None, "the batch of a step has an order"
    busiest = imbalance(visible_pairs_per_rank(mask, None, order, ranks))
    groups = f" in groups of {plan.ulysses}" if 1 < plan.ulysses < plan.axes.context else ""
    return [
        (
            "context ranks",
            f"{plan.axes.context}{groups}",
            f"the busiest rank of a row without documents has {busiest:.0%} more work than the mean",
        )
    ]


def _offload_rows(layout: StepLayout) -> list[tuple[str, str, str]]:
    """The activations in host memory between forward and backward; empty where all stay on the device."""
    names = offloaded(layout.plan.runs)
    if not names:
        return []
    total = size(offloaded_bytes(layout.config, layout.plan))
    return [("offload", total, f"{', '.join(names)} offloaded: {total} in host memory, for each device")]


def _pipeline_rows(layout: StepLayout) -> list[tuple[str, str, str]]:
    """The schedule, its cost, and what each pipeline rank keeps; empty where there is one stage."""
    plan, schedule = layout.plan, layout.schedule
    if plan.axes.pipe == 1:
        return []
    layers = plan.stage_layers
    times = Durations(forward=layers, backward=[2 * n for n in layers], weight=layers)
    bubbles = {mode: simulate(schedule, times, mode=mode).bubble_fraction for mode in ("async", "lockstep")}
    runs = "branching" if plan.pipe_ticks == "branching" else "lockstep"
    simulated = simulate(schedule, times, mode=runs)
    sizes = chunk_bytes(layout.config, plan)
    slots = layout.program.slots
    between = (slots["arrivals"] + slots["cotangents"] + slots["outputs"]) * sizes.sent
    stash_bytes = slots["stash"] * sizes.stash + slots["kept"] * sizes.kept + between
    later = f", {slots['kept']} of {size(sizes.kept)} from B to W" if slots["kept"] else ""
    longest = sum(stack.rows_per_chunk for stack in layout.order.stacks.values())
    padding = f"; each has memory for {plural(longest, 'layer')}" if layout.order.padded else ""
    vocabulary = "shared by all ranks" if plan.pipe_ends == "shared" else "on the first and the last rank"
    return [
        (
            "pipeline",
            f"{plan.schedule}, {plan.axes.pipe} ranks",
            f"layers {'+'.join(map(str, layers))}{padding}; {plural(plan.microbatches, 'microbatch')}; "
            f"vocabulary {vocabulary}",
        ),
        (
            "bubble",
            f"{float(simulated.bubble_fraction):.0%} expected",
            f"{plan.pipe_ticks} ticks; {float(bubbles['async']):.0%} where ranks do not wait for ticks "
            "(a backward taken for two forwards, the head not counted)",
        ),
        (
            "activations",
            size(stash_bytes),
            f"on each pipe rank: room for {plural(slots['stash'], 'chunk')} of {size(sizes.stash)} from F to B{later}, "
            f"and {size(between)} on the way; in flight at most {', '.join(map(str, simulated.peak_in_flight))} on "
            f"ranks 0 to {plan.axes.pipe - 1}",
        ),
    ]


def crossings(mesh: Mesh) -> str:
    """A phrase for the axes with neighbours in different processes, in a job of several."""
    devices = mesh.devices
    owner = np.vectorize(lambda device: device.process_index)(devices)
    if owner.min() == owner.max():
        return ""
    crossing = [axis for dim, axis in enumerate(MESH_AXES) if (owner != owner.take([0], axis=dim)).any()]
    return f" in {jax.process_count()} processes; crossing between them: {', '.join(crossing)}"


def _local_parameters(layout: StepLayout) -> str:
    storage, axes = layout.placements.storage.layout, layout.plan.axes
    sizes = map_specs(lambda spec, where: prod(local_shape(spec.shape, where, axes)), layout.specs, storage)
    return count(sum(jax.tree.leaves(sizes)))


def _bytes(layout: StepLayout, specs: Specs, role: Placement) -> str:
    return size(bytes_per_device(specs, Placement(subtree_like(role.layout, specs), role.dtype), layout.plan.axes))


def _zero_words(layout: StepLayout) -> str:
    """A phrase for the state that is sharded, and the matrices that are not because none of their dims divides."""
    axes, words = layout.plan.axes, ZERO_WORDS[layout.plan.zero]
    if layout.plan.zero and prod(axes[axis] for axis in SHARD_AXES) > 1:
        words += _unsplit_words(layout, SHARD_AXES, "whole")
    if layout.plan.shard_state_over_replicas.name:
        words += f"; optimizer state over {axes.replica} replicas too"
        words += _unsplit_words(layout, REPLICAS, "the same in all replicas")
    return words


def _unsplit_words(layout: StepLayout, split: tuple[str, ...], how: str) -> str:
    """A phrase for the matrices that are `how` because no dim divides by the axes `split`; empty if there is none."""
    axes, paths = layout.plan.axes, []
    compute, optimizer = layout.placements.compute.layout, layout.placements.optimizer.layout

    def look(path: KeyPath, spec: ParamSpec, outer: PartitionSpec, inner: PartitionSpec) -> None:
        shards = {axis for axis in split if axes[axis] > 1} - mesh_axes_of(outer)
        if shards and spec.decay and not shards & mesh_axes_of(inner):
            paths.append("/".join(str(key.key) for key in path))

    is_leaf = lambda x: isinstance(x, ParamSpec)
    jax.tree_util.tree_map_with_path(look, layout.specs, compute, optimizer, is_leaf=is_leaf)
    return f"; {how} for want of a dim that divides: {', '.join(paths)}" if paths else ""
