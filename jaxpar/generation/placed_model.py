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

from jaxpar.config import Config, load_config, virtual_devices_needed
from jaxpar.config.axes import axis_sizes
from jaxpar.config.plan import AxisSizes
from jaxpar.config.reading.overrides import check_used_by_models
from jaxpar.distributed.devices import Device, find_devices, prepare_devices
from jaxpar.generation.layout import generation_layout
from jaxpar.interop.sources.open_source import Model, open_source
from jaxpar.interop.sources.source import read_part
from jaxpar.layers.inputs.input import refuse_without_batches
from jaxpar.layout.make_plan import resolve_config
from jaxpar.layout.step_layout import shardings
from jaxpar.mesh.axes import AXES
from jaxpar.mesh.build import build_mesh
from jaxpar.mesh.parameters import ParamSpec, Weights


@dataclass(frozen=True)
class PlacedModel:
    """A model whose weights are on a mesh."""

    config: Config
    """Configuration of the model, with a mesh whose axes are filled in."""
    mesh: Mesh
    weights: Weights
    """In the storage placement of `generation_layout`."""


def open_model(path: str, overrides: Sequence[str]) -> tuple[Config, Model]:
    """Set up the devices and open a MODEL; nothing of its weights is read yet.

    Args:
        path: the MODEL, as `--model` names it.
        overrides: `section.key=value` of `USED_BY_MODELS`.

    Returns:
        the configuration with the model's own section, and the weights.

    Raises:
        UserError: an override is not of these sections or wrong, or there is no model.
    """
    check_used_by_models(overrides)
    config = load_config(None, overrides)
    # Before anything else uses JAX: opening a checkpoint does.
    prepare_devices(virtual_devices_needed(config.parallel), config.distributed)
    source = open_source(path, "--model")
    return replace(config, model=source.model), source


def place_model(config: Config, source: Model) -> PlacedModel:
    """`place_on` all devices. On CPUs layers compute in float32 unless the configuration names a precision."""
    devices = find_devices()
    if devices[0].platform == "cpu" and config.precision == type(config.precision)():
        config = replace(config, precision=replace(config.precision, compute="float32"))
    return place_on(config, source, devices)


def place_on(config: Config, source: Model, devices: Sequence[Device]) -> PlacedModel:
    """Read the weights onto some devices: each process reads what its own devices hold.

    Where the configuration names no axis, the tensor axis takes as many devices as divide the heads, and fsdp the
    others.

    Raises `UserError` for a bidirectional model, and for an input that reads more than tokens.
    """
    refuse_without_batches(source.model, "generation")
    if all(getattr(config.parallel, axis) == 1 for axis in AXES) and len(devices) > 1:
        tensor = gcd(len(devices), config.model.heads, config.model.kv_heads or config.model.heads)
        config = replace(config, parallel=replace(config.parallel, tensor=tensor, fsdp=-1))
    rows = 8 * len(devices)
    data = replace(
        config.data, source="synthetic", batch_size=rows, sequence_length=len(devices), packed=False, routing=None
    )
    config = resolve_config(replace(config, data=data), len(devices))
    mesh = build_mesh(AxisSizes(**axis_sizes(config.parallel)), devices)
    layout = generation_layout(config, mesh)
    stored, dtype = shardings(mesh, layout.placements.storage.layout), layout.placements.storage.dtype

    def placed(path: KeyPath, spec: ParamSpec, where: NamedSharding) -> jax.Array:
        read = read_part(source, path, spec, layout.order)

        def part(region: Any) -> np.ndarray:
            return read(region).astype(dtype)

        return jax.make_array_from_callback(spec.shape, where, part)

    weights = jax.tree_util.tree_map_with_path(
        placed, layout.specs, stored, is_leaf=lambda leaf: isinstance(leaf, ParamSpec)
    )
    return PlacedModel(config, mesh, weights)
