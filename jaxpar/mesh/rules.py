"""Rules: which mesh axes each logical axis of a weight is split over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import prod

from jax.sharding import PartitionSpec

from jaxpar.mesh.axes import AXES
from jaxpar.mesh.parameters import ParamSpec

type MeshAxes = tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """One field per logical axis of a weight: the mesh axes it is split over, outermost first."""

    layers: MeshAxes = ()
    vocab: MeshAxes = ()
    positions: MeshAxes = ()
    input: MeshAxes = ()
    """The width of a field that the input of the model projects: whole on every tensor rank."""
    embed: MeshAxes = ()
    heads: MeshAxes = ()
    kv_heads: MeshAxes = ()
    head_dim: MeshAxes = ()
    latent: MeshAxes = ()
    """The width that latent attention expands queries, keys and values from: full on every tensor rank."""
    mlp: MeshAxes = ()
    laurel: MeshAxes = ()
    """The rank of a learned residual."""
    per_layer: MeshAxes = ()
    """The width of a layer's inputs."""
    norm: MeshAxes = ()
    experts: MeshAxes = ()
    router: MeshAxes = ()
    """The experts that a router chooses among: every rank routes its own tokens."""
    adapters: MeshAxes = ()
    """Adapters side by side: every rank has the factors of all."""
    rank: MeshAxes = ()
    """Between the two factors of a matrix or of an adapter."""


LOGICAL_AXES = tuple(field.name for field in fields(Rules))


def rules_of(spec: ParamSpec, rules: Rules, sizes: Mapping[str, int]) -> Rules:
    """`rules` for a weight: key and value heads that do not divide by the ranks stay whole on each of them, which then
    uses those that its query heads need."""
    heads = dict(zip(spec.axes, spec.shape, strict=True)).get("kv_heads", 0)
    return replace(rules, kv_heads=()) if heads % prod(sizes[axis] for axis in rules.kv_heads) else rules


def partition(spec: ParamSpec, rules: Rules) -> PartitionSpec:
    """Partition of `spec` under `rules`.

    Raises `ValueError` when a logical axis has no rule, or when two of them claim one mesh axis; it names both.
    """
    owner: dict[str, str] = {}
    entries = []
    for name in spec.axes:
        if name not in LOGICAL_AXES:
            raise ValueError(f"logical axis {name!r} of a weight with axes {spec.axes} has no rule")
        claimed = getattr(rules, name)
        for axis in claimed:
            assert axis in AXES, f"rule for {name!r} names {axis!r}, which is no mesh axis"
            if axis in owner:
                raise ValueError(
                    f"logical axes {owner[axis]!r} and {name!r} both claim mesh axis {axis!r} in {spec.axes}"
                )
            owner[axis] = name
        entries.append(claimed if len(claimed) > 1 else claimed[0] if claimed else None)
    return PartitionSpec(*entries)


def compute_rules(*, shared_embed_and_head: bool = False) -> Rules:
    """The sharding of weights while they are multiplied: Megatron's tensor parallelism, layers over the pipeline,
    experts over the expert axis.

    With `shared_embed_and_head` the pipeline's ranks split the vocabulary among them too.
    """
    return Rules(
        layers=("pipe",),
        vocab=("pipe", "tensor") if shared_embed_and_head else ("tensor",),
        heads=("tensor",),
        kv_heads=("tensor",),
        mlp=("tensor",),
        laurel=("tensor",),
        per_layer=("tensor",),
        experts=("expert",),
    )


def mesh_axes_of(partition: PartitionSpec) -> frozenset[str]:
    """All mesh axes that `partition` uses."""
    return frozenset(axis for dim in range(len(partition)) for axis in axes_of_dim(partition, dim))


def axes_of_dim(partition: PartitionSpec, dim: int) -> tuple[str, ...]:
    """Mesh axes that split dimension `dim`, outermost first."""
    entry = partition[dim] if dim < len(partition) else None
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
