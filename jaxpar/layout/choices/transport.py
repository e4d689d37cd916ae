"""Transport of weights and gradients: what a plan decides, and whether the nodes of a mesh allow it."""

from __future__ import annotations

from math import gcd

from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import AxisSizes, Plan
from jaxpar.layers.declared import declare_layer
from jaxpar.mesh.axes import ROUTED_AXES, SHARD_AXES
from jaxpar.mesh.quantized.transport import Transport, hpz_ranks, split_by_nodes


def transport_of(plan: Plan) -> Transport:
    """Transport of the matrices of a plan."""
    return Transport(
        weight=plan.dtypes.weight_message,  # pyright: ignore[reportArgumentType]
        gradient=plan.dtypes.gradient_message,  # pyright: ignore[reportArgumentType]
        node_devices=plan.node_devices,
        hpz=plan.hpz,
        rows=plan.embedding_messages.name == "rows",
    )


def check_transport(config: Config, axes: AxisSizes, node_devices: int | None) -> int | None:
    """Devices of a node, where messages are cut at its border; None where none is.

    Raises:
        UserError: the nodes do not divide the ranks of a message.
    """
    parallel, gradients = config.parallel, config.parallel.quantized.gradients
    routed = axes.routed > 1 and _routes(config)
    if routed:
        _check_neighbours(config, axes)
    if node_devices is None or node_devices >= axes.devices:
        return None
    _check_hpz(config, axes, node_devices)
    if gradients is None:
        return None
    splits: list[tuple[str, ...]] = [("replica", *SHARD_AXES)] if parallel.zero == 0 else [SHARD_AXES, ("replica",)]
    if routed:  # routed weights travel over the others of these axes
        splits.append(tuple(axis for axis in splits[0] if axis not in ROUTED_AXES))
    for split in splits:
        if split_by_nodes(dict(axes), split, node_devices) is None:
            ranks = " x ".join(f"{axis} {axes[axis]}" for axis in split if axes[axis] > 1)
            inner = f" (with tensor {axes.tensor})" if axes.tensor > 1 else ""
            raise UserError(
                f"parallel.quantized.gradients: {gradients} sends inside nodes first, and the ranks of "
                f"parallel.{ranks}{inner} are not spread evenly over nodes of {node_devices} devices; expected sizes "
                "that fill whole nodes, or divide one"
            )
    return node_devices


def _routes(config: Config) -> bool:
    """Whether some layers have matrices among which a router chooses."""
    return any(declare_layer(one).routed for one in kind_models(config.model).values())


def _check_neighbours(config: Config, axes: AxisSizes) -> None:
    """Refuse neighbours that are some ranks of one axis and some of another, where routed weights are split."""
    hpz, ranks = config.parallel.hpz, axes.shards
    if hpz is None or hpz_ranks(hpz, dict(axes), ROUTED_AXES) is not None:
        return
    over = " x ".join(f"{axis} {axes[axis]}" for axis in SHARD_AXES)
    fits = [n for n in range(2, ranks) if ranks % n == 0 and hpz_ranks(n, dict(axes), ROUTED_AXES) is not None]
    raise UserError(
        f"parallel.hpz: {hpz} neighbours of parallel.{over} are no whole ranks of these "
        "axes, and a router's matrices are split over one of them; expected "
        f"{' or '.join(map(str, fits)) or 'null'}"
    )


def _check_hpz(config: Config, axes: AxisSizes, node_devices: int) -> None:
    hpz = config.parallel.hpz
    if hpz is None or node_devices % (hpz * axes.tensor) == 0:
        return
    most = gcd(node_devices // gcd(node_devices, axes.tensor), axes.shards)
    beside = f" x parallel.tensor {axes.tensor}" if axes.tensor > 1 else ""
    instead = f"for example {most}" if most > 1 and node_devices % axes.tensor == 0 else "null"
    raise UserError(
        f"parallel.hpz: {hpz}{beside} ranks do not divide a node of {node_devices} devices, and an "
        f"hpZ shard is for gathers inside a node; expected {instead}"
    )
