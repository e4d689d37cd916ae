"""A MODEL on the devices that there are, laid out for generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.tree_util import KeyPath

from jaxpar.config import Config, UserError, load_config, virtual_devices_needed
from jaxpar.config.axes import axis_sizes
from jaxpar.config.plan import AxisSizes
from jaxpar.config.reading.overrides import check_used_by_models
from jaxpar.distributed.devices import Device, find_devices, prepare_devices
from jaxpar.generation.layout import generation_layout
from jaxpar.generation.mixture.functions import MODELS, ROUTER
from jaxpar.generation.mixture.router import LAYOUT as ROUTER_LAYOUT
from jaxpar.generation.mixture.router import Mixing
from jaxpar.generation.mixture.source import MixedWeights, is_mixture
from jaxpar.interop.adapters.adapter import AdapterSource
from jaxpar.interop.sources.open_source import Model, local_model, open_source
from jaxpar.interop.sources.source import ReadWeights, read_part
from jaxpar.layers.inputs.input import refuse_without_batches
from jaxpar.layout.make_plan import resolve_config
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.mesh.axes import AXES
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.parameters import ParamSpec, Weights
from jaxpar.pages.units import plural


@dataclass(frozen=True)
class PlacedModel:
    """A model whose weights are on a mesh."""

    config: Config
    """Configuration of the model, with a mesh whose axes are filled in."""
    mesh: Mesh
    weights: Weights
    """The weights, in the storage placement of `generation_layout`."""
    prefill: Mesh | None = None
    """The devices that read prompts, if they are others."""
    mixing: Mixing | None = None
    """The sizes of a mixture, whose weights are by `mixture_layout`; None for one model."""


def open_model(path: str, overrides: Sequence[str], prefill: int = 0) -> tuple[Config, Model]:
    """Set up the devices and open a MODEL; nothing of its weights is read yet.

    Args:
        path: the MODEL, as `--model` names it.
        overrides: `section.key=value` of `USED_BY_MODELS`.
        prefill: devices that read prompts, besides those of `parallel`.

    Returns:
        the configuration with the model's own section, and the weights.

    Raises:
        UserError: an override is not of these sections or wrong, or there is no model.
    """
    check_used_by_models(overrides)
    config = load_config(None, overrides)
    # Before anything else uses JAX: opening a checkpoint does.
    prepare_devices(virtual_devices_needed(config.parallel) + prefill, config.distributed)
    source = MixedWeights(local_model(path, "--model")) if is_mixture(path) else open_source(path, "--model")
    return replace(config, model=source.model), source


def place_model(config: Config, source: ReadWeights, prefill: int = 0) -> PlacedModel:
    """`place_on` all devices but the last `prefill`, which are to read prompts. On CPUs layers compute in float32
    unless the configuration names a precision."""
    devices = find_devices()
    if devices[0].platform == "cpu" and config.precision == type(config.precision)():
        config = replace(config, precision=replace(config.precision, compute="float32"))
    if prefill and (jax.process_count() > 1 or prefill >= len(devices)):
        raise UserError(
            f"--prefill-devices {prefill}: there are {plural(len(devices), 'device')} in "
            f"{plural(jax.process_count(), 'process', 'processes')}; expected fewer than there are, in one process"
        )
    first, last = devices[: len(devices) - prefill], devices[len(devices) - prefill :]
    model = place_on(config, source, first)
    return replace(model, prefill=prefill_mesh(model.config, last)) if prefill else model


def prefill_mesh(config: Config, devices: Sequence[Device]) -> Mesh:
    """A mesh of devices that read prompts for slots laid out by `config`: as that of these, but for its data ranks.

    Raises:
        UserError: the devices are no multiple of those of a data rank.
    """
    parallel = config.parallel
    each = parallel.expert * parallel.context * parallel.tensor
    if len(devices) % each:
        raise UserError(
            f"--prefill-devices {len(devices)}: prompts are read by layers split like those of the slots "
            f"(parallel.expert x context x tensor: {each}); expected a multiple of {each}"
        )
    parallel = replace(parallel, replica=1, fsdp=len(devices) // each)
    return build_mesh(AxisSizes(**axis_sizes(parallel)), devices)


def place_on(config: Config, source: ReadWeights, devices: Sequence[Device]) -> PlacedModel:
    """Read the weights onto some devices, on `mesh_of` them: each process reads the shards of its devices.

    Raises `UserError` for a bidirectional model, and for an input that reads more than tokens.
    """
    refuse_without_batches(source.model, "generation")
    config, mesh = mesh_of(config, devices)
    if isinstance(source, AdapterSource):
        config = replace(config, lora=source.stack)
    mixing = source.mixing if isinstance(source, MixedWeights) else None
    return PlacedModel(config, mesh, read_weights(config, mesh, source), mixing=mixing)


def read_weights(config: Config, mesh: Mesh, source: ReadWeights) -> Weights:
    """The weights of a source on a mesh, in the storage placement of `generation_layout`: each process reads the shards
    of its devices."""
    layout = generation_layout(config, mesh)
    if not isinstance(source, MixedWeights):
        return _placed_weights(source, layout, mesh)
    router = jax.tree.map(
        lambda leaf, where: jax.device_put(leaf, where), source.router, shardings(mesh, ROUTER_LAYOUT)
    )
    models = [_placed_weights(one, layout, mesh) for one in source.models]
    return {MODELS: models, ROUTER: router}


def _placed_weights(source: ReadWeights, layout: StepLayout, mesh: Mesh) -> Weights:
    """The weights of a model in the storage placement of a layout."""
    placements = layout.placements

    def placed(path: KeyPath, spec: ParamSpec, where: NamedSharding, dtype: np.dtype) -> jax.Array:
        read = read_part(source, path, spec, layout.order)

        def part(region: Any) -> np.ndarray:
            return read(region).astype(dtype)

        return jax.make_array_from_callback(spec.shape, where, part)

    is_leaf = lambda leaf: isinstance(leaf, ParamSpec)
    stored = shardings(mesh, placements.storage.layout)
    return jax.tree_util.tree_map_with_path(placed, layout.specs, stored, placements.storage_dtypes, is_leaf=is_leaf)


def mesh_of(config: Config, devices: Sequence[Device]) -> tuple[Config, Mesh]:
    """The configuration of a model on some devices with its axes filled in, and the mesh.

    Where the configuration names no axis, the tensor axis takes as many devices as divide the heads, and fsdp the
    others.
    """
    if all(getattr(config.parallel, axis) == 1 for axis in AXES) and len(devices) > 1:
        tensor = gcd(len(devices), config.model.heads, config.model.kv_heads or config.model.heads)
        config = replace(config, parallel=replace(config.parallel, tensor=tensor, fsdp=-1))
    rows = 8 * len(devices)
    data = replace(
        config.data, source="synthetic", batch_size=rows, sequence_length=len(devices), packed=False, routing=None
    )
    config = resolve_config(replace(config, data=data), len(devices))
    return config, build_mesh(AxisSizes(**axis_sizes(config.parallel)), devices)
