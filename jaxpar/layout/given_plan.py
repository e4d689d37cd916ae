"""Checks of a plan that is given to a run: that it matches the run's configuration, and can run on its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxpar.config import Config, UserError, config_difference
from jaxpar.config.axes import axis_sizes
from jaxpar.config.mappings.overlap import OverlapConfig
from jaxpar.config.plan import Plan
from jaxpar.config.reading.options import OPTIONS, matrix_dtype
from jaxpar.config.reading.typed import shown
from jaxpar.distributed.devices import Device
from jaxpar.layers.declared import activation_names
from jaxpar.layout.choices.attention import check_attention
from jaxpar.layout.choices.embedding import check_embedding_messages
from jaxpar.layout.choices.experts import check_expert_layouts
from jaxpar.layout.choices.linear_attention import check_linear_backends
from jaxpar.layout.choices.overlap import check_overlap
from jaxpar.layout.choices.pipeline import layer_order, schedule_of, unsplit_backward_reason
from jaxpar.layout.choices.replica_state import check_state_over_replicas
from jaxpar.layout.choices.state_messages import check_state_messages
from jaxpar.layout.choices.tiles import head_tokens
from jaxpar.layout.choices.transport import check_transport
from jaxpar.layout.layer_unroll import check_layer_unroll
from jaxpar.layout.resident_state import check_resident_state
from jaxpar.layout.weight_prefetch import check_weight_prefetch
from jaxpar.pages.units import plural

PLANNED = (
    "model.", "lora.", "parallel.", "precision.", "attention.", "memory.",
    "data.batch_size", "data.sequence_length", "data.packed",
)  # fmt: skip
"""Prefixes of the keys that a plan is made from."""
NOT_PLANNED = ("memory.offload_dir", "memory.host_limit")
"""Keys with these prefixes that only say where a run of the plan has room; they may differ."""
OTHERWISE = "python -m jaxpar.plan on this cluster makes another plan, and so does a run with --config"


def check_same_layout(planned: Config, changed: Config) -> None:
    """Raise `UserError` where a key that a plan is made from has another value than when it was made."""
    for line in config_difference(planned, changed):
        key, _, values = line.partition(": ")
        if key.startswith(PLANNED) and key not in NOT_PLANNED:
            raise UserError(
                f"--set {key}: the plan was made for another value ({values}); plan again with python -m jaxpar.plan, "
                "or train with --config and the configuration of the plan"
            )


def check_plan_devices(plan: Plan, devices: Sequence[Device]) -> None:
    """Raise `UserError` if a plan is for another number of devices."""
    if plan.axes.devices != len(devices):
        mesh = " x ".join(f"{axis} {size}" for axis, size in dict(plan.axes).items() if size > 1) or "all axes 1"
        raise UserError(
            f"plan.axes: the plan ({mesh}) is for {plural(plan.axes.devices, 'device')}, and there "
            f"{'is' if len(devices) == 1 else 'are'} {len(devices)}; {OTHERWISE}"
        )


def check_plan(plan: Plan, config: Config, device: Device, node_devices: int | None = None) -> None:
    """Check that a plan matches a resolved `config` and can run on devices like `device`, in nodes of `node_devices`.

    Raises:
        UserError: it does not, or cannot: one sentence with the key of the plan.
    """
    if (why := unsplit_backward_reason(config)) is not None and schedule_of(plan).splits_backward:
        raise UserError(f"plan.schedule: {plan.schedule} splits the backward, but {why}; {OTHERWISE}")
    for key, planned, wanted, what in _sizes(plan, config):
        if planned != wanted:
            raise UserError(f"plan.{key}: {shown(planned)}, and {what} is {shown(wanted)}; {OTHERWISE}")
    tokens = head_tokens(config)
    for key in ("loss_tiles", "mlp_tiles"):
        if (tiles := getattr(plan, key).name) > tokens:
            raise UserError(f"plan.{key}: {tiles} are more than a device's {tokens} tokens of a microbatch")
    check_overlap(plan, config)
    check_embedding_messages(plan, config)
    check_state_messages(plan, config)
    check_state_over_replicas(plan, config)
    check_layer_unroll(plan)
    check_weight_prefetch(plan)
    check_resident_state(plan, config)
    try:
        check_expert_layouts(plan, config, device, node_devices)
        wanted = check_transport(config, plan.axes, node_devices)
        if plan.node_devices != wanted:
            raise UserError(f"plan.node_devices: {shown(plan.node_devices)}, and the nodes here have {shown(wanted)}")
        check_attention(plan, config, device, node_devices)
        check_linear_backends(plan, config, device)
    except UserError as error:
        raise UserError(f"{error}; {OTHERWISE}") from None


def _sizes(plan: Plan, config: Config) -> list[tuple[str, Any, Any, str]]:
    """(key of the plan, its value, the value expected, where that comes from)."""
    parallel, precision, memory = config.parallel, config.precision, config.memory
    quantized, rows = parallel.quantized, plan.microbatches * plan.microbatch_rows * plan.axes.data
    schedule = schedule_of(plan)
    slots = layer_order(plan, config.model).layers_per_chunk if len(plan.stage_layers) == schedule.chunks else 0
    same = ("zero", "microbatches", "pipe_ends", "pipe_ticks")
    offloads, matrix = ("optimizer_offload", "weights_offload"), matrix_dtype(config.optimizer)
    return [
        ("axes", dict(plan.axes), axis_sizes(parallel), "the mesh of the configuration"),
        *((key, getattr(plan, key), getattr(parallel, key), f"parallel.{key}") for key in same),
        ("microbatch_rows", rows, config.data.batch_size, "data.batch_size, of all microbatches and data ranks,"),
        ("stage_layers", len(plan.stage_layers), schedule.chunks, "the number of chunks of plan.schedule"),
        ("stage_layers", sum(plan.stage_layers), config.model.layers, "model.layers"),
        ("runs", sum(run.layers for run in plan.runs), slots, "the number of layers of a chunk"),
        *(
            ("runs", sorted(run.activations), sorted(activation_names(config.model)), "the activations of the model")
            for run in plan.runs
        ),
        *((f"dtypes.{key}", getattr(plan.dtypes, key), getattr(precision, key), f"precision.{key}") for key in DTYPES),
        ("dtypes.weight_message", plan.dtypes.weight_message, quantized.weights, "parallel.quantized.weights"),
        ("dtypes.gradient_message", plan.dtypes.gradient_message, quantized.gradients, "parallel.quantized.gradients"),
        *_named(plan, parallel.overlap),
        ("hpz", plan.hpz, parallel.hpz or 1, "parallel.hpz"),
        ("dtypes.storage", plan.dtypes.storage, precision.storage or precision.compute, "precision.storage"),
        *((key, getattr(plan, key), getattr(memory, key), f"memory.{key}") for key in offloads),
        *([("dtypes.matrix", plan.dtypes.matrix, matrix, f"{OPTIONS}.matrix_dtype")] if matrix != "auto" else []),
    ]


def _named(plan: Plan, overlap: OverlapConfig) -> list[tuple[str, Any, Any, str]]:
    """The values among `_sizes` that a configuration names where it could leave the choice to the plan."""
    asked = {key: getattr(overlap, key) for key in NAMED}
    named = [(key, getattr(plan, key).name, value) for key, value in asked.items() if value != "auto"]
    named.append(("collectives_at_once", plan.collectives_at_once, overlap.collectives_at_once))
    return [(key, planned, value, f"parallel.overlap.{key}") for key, planned, value in named]


NAMED = ("embedding_messages", "state_messages", "shard_state_over_replicas", "layer_unroll", "weight_prefetch")
"""Options of `parallel.overlap`, by the same name in a plan, of which `auto` leaves the choice to it."""
DTYPES = ("compute", "gradient", "moments", "matmul")
"""Roles whose dtype is in `precision` under the same name."""
