"""From what the user asked for to a `Plan` for the devices at hand."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.attention import AttentionRequest, choose_backend, choose_context_strategy
from jaxpar.config import Config
from jaxpar.config.axes import AXES, resolve_axes
from jaxpar.config.counting import head_dim, kv_heads
from jaxpar.config.plan import AxisSizes, Dtypes, Plan
from jaxpar.config.validate import validate
from jaxpar.memory.remat import base_preset
from jaxpar.mesh.devices import Device
from jaxpar.training.pipeline import choose_schedule, chunk_layers
from jaxpar.training.tiles import loss_tiles, mlp_tiles, treatments


def resolve_config(config: Config, devices: int) -> Config:
    """`config` with the mesh axis of -1 filled in for `devices`, checked. Raises `UserError`."""
    config = replace(config, parallel=resolve_axes(config.parallel, devices))
    validate(config)
    return config


def with_vocab(config: Config, vocab: int) -> Config:
    """`config` with the vocabulary that the data has, checked. Raises `UserError`."""
    config = replace(config, model=replace(config.model, vocab=vocab))
    validate(config)
    return config


def make_plan(config: Config, device: Device) -> Plan:
    """The layout of a resolved `config` on devices like `device`.

    Raises `UserError` for a choice that does not support it.
    """
    parallel, precision = config.parallel, config.precision
    axes = AxisSizes(**{axis: getattr(parallel, axis) for axis in AXES})
    request = attention_request(config, device)
    schedule = choose_schedule(config)
    in_tiles = mlp_tiles(config, schedule.splits_backward).number
    return Plan(
        axes=axes,
        zero=parallel.zero,
        schedule=schedule.name,
        virtual_stages=schedule.virtual_stages,
        stage_layers=chunk_layers(config, schedule.chunks),
        pipe_ends=parallel.pipe_ends,
        pipe_ticks=parallel.pipe_ticks,
        microbatches=parallel.microbatches,
        microbatch_rows=config.data.batch_size // (axes.data * parallel.microbatches),
        remat=base_preset(config.memory.remat),
        activations=treatments(config, in_tiles),
        dtypes=Dtypes(
            compute=precision.compute,
            storage=precision.storage or precision.compute,
            master=precision.master,
            gradient=precision.gradient,
            moments=precision.moments,
        ),
        attention=choose_backend(config.attention.backend, request),
        context_strategy=choose_context_strategy(parallel.context_strategy, request),
        loss_tiles=loss_tiles(config).number,
        mlp_tiles=in_tiles,
    )


def attention_request(config: Config, device: Device) -> AttentionRequest:
    """What attention is asked for, on one device of the layout."""
    model, tensor = config.model, config.parallel.tensor
    capability = getattr(device, "compute_capability", None)
    return AttentionRequest(
        platform=device.platform,
        dtype=config.precision.compute,
        heads=model.heads // tensor,
        kv_heads=max(1, kv_heads(model) // tensor),
        head_dim=head_dim(model),
        packed=config.data.packed,
        window=model.window,
        softcap=model.attention_softcap,
        prefix=False,
        sequence=config.data.sequence_length,
        context=config.parallel.context,
        compute_capability=None if capability is None else float(capability),
    )
