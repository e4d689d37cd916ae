"""Elements and bytes of the parts of a model on one device, as `mesh.placements` lays them: from declarations alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from jaxpar.config import Config
from jaxpar.config.counting import kv_heads
from jaxpar.config.kinds import kind_counts
from jaxpar.memory.layer_shape import FLOAT32_BYTES
from jaxpar.mesh.layer_order import LAYERS, LayerOrder, own_layers
from jaxpar.mesh.parameters import ParamSpec, Tree
from jaxpar.mesh.placements import SHARD_ORDER
from jaxpar.mesh.rules import compute_rules
from jaxpar.model.decoder import decoder_specs
from jaxpar.optim.moments import Blocks, form_of

HALVES = ("attention", "mlp")
"""Of a layer, what has its large weights."""


class Part(NamedTuple):
    """Elements of one part of the model on a device; of layers, of one."""

    compute: int
    """As they are multiplied."""
    sharded: int
    """Split over fsdp, expert and context besides."""
    state: float
    """Bytes of master weights and moments where those are split like `sharded`."""
    whole_state: float
    """Those where they are split like `compute`."""
    largest: float
    """Of the state of one weight alone, split like `sharded`."""
    whole_largest: float
    """The same, split like `compute`."""


class Parts(NamedTuple):
    """The parts of a model on a device."""

    ends: dict[str, Part]
    """Embedding, head and the norm before it, by name."""
    layers: dict[str, Part]
    """Of one layer of each kind."""


class Ends(NamedTuple):
    """Bytes by part of the model."""

    layers: int
    embedding: int
    head: int
    final_norm: int

    @property
    def all(self) -> int:
        """Bytes of the whole model."""
        return sum(self)


@dataclass(frozen=True)
class Weights:
    """The weights of one configuration, on any mesh; its `parallel` plays no part."""

    config: Config

    @cached_property
    def _specs(self) -> Tree:
        """Of the model, with one layer of each kind."""
        return decoder_specs(self.config, LayerOrder.of_kinds([0], [self.kinds]))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Of the model's layers."""
        return tuple(kind_counts(self.config.model))

    @cached_property
    def _parts(self) -> dict[tuple[int, int, int], Parts]:
        return {}

    def parts(self, tensor: int, shards: int, pipe: int = 1) -> Parts:
        """Elements and state of each part.

        Args:
            tensor: ranks that share every matrix.
            shards: ranks that ZeRO shards over.
            pipe: ranks that share the ends of the model; 1 where they do not.
        """
        key = tensor, shards, pipe
        if key not in self._parts:
            ends = {name: self._part(tree, *key) for name, tree in self._specs.items() if name != LAYERS}
            self._parts[key] = Parts(ends, {kind: self._part(self._layer(kind), *key) for kind in self.kinds})
        return self._parts[key]

    def largest_of_halves(self, tensor: int, shards: int, pipe: int = 1) -> tuple[dict[str, Part], ...]:
        """For attention and the feed-forward, of each kind of layer the weight with the most elements."""
        each = lambda kind, half: [self._part(spec, tensor, shards, pipe) for spec in _leaves(self._layer(kind)[half])]
        largest = lambda kind, half: max(each(kind, half), key=lambda part: part.compute)
        return tuple({kind: largest(kind, half) for kind in self.kinds} for half in HALVES)

    def _layer(self, kind: str) -> Tree:
        return own_layers(self._specs[LAYERS], kind)

    def _part(self, tree: Tree, tensor: int, shards: int, pipe: int) -> Part:
        found = [self._weight(spec, tensor, shards, pipe) for spec in _leaves(tree)]
        compute, sharded, state, whole, largest, whole_largest = zip(*found, strict=True)
        return Part(sum(compute), sum(sharded), sum(state), sum(whole), max(largest), max(whole_largest))

    def _weight(self, spec: ParamSpec, tensor: int, shards: int, pipe: int) -> Part:
        rules = compute_rules(kv_heads=kv_heads(self.config.model), tensor=tensor, shared_ends=pipe > 1)
        sizes = {"tensor": tensor, "pipe": pipe}
        dims = [(name, size) for name, size in zip(spec.axes, spec.shape, strict=True) if name != "layers"]
        local = {name: size // prod(sizes[axis] for axis in getattr(rules, name)) for name, size in dims}
        compute = prod(local.values())
        divides = len(dims) > 1 and any(local[name] % shards == 0 for name in SHARD_ORDER if name in local)
        sharded = compute // shards if divides else compute
        each = self._state_bytes(spec)
        return Part(compute, sharded, sharded * each, compute * each, sharded * each, compute * each)

    def _state_bytes(self, spec: ParamSpec) -> float:
        """Bytes of master weight, moments and average for each element."""
        optimizer, moments = self.config.optimizer, self.config.precision.moments
        each = FLOAT32_BYTES * (2 if optimizer.ema is not None else 1)
        if optimizer.name == "adafactor":
            dims = [size for name, size in zip(spec.axes, spec.shape, strict=True) if name != "layers"]
            inputs, outputs = prod(dims[: spec.inputs]), prod(dims[spec.inputs :])
            return each + (FLOAT32_BYTES / inputs + FLOAT32_BYTES / outputs if len(dims) > 1 else FLOAT32_BYTES)
        form = form_of(moments, spec)
        if isinstance(form, Blocks):
            width = 1 + FLOAT32_BYTES / form.size
        else:
            width = 2 if form == "bfloat16" else FLOAT32_BYTES
        single = optimizer.name == "lion" or (optimizer.name == "muon" and spec.matrix)
        return each + width * (1 if single else 2)


def _leaves(tree: Tree) -> list[ParamSpec]:
    return [tree] if isinstance(tree, ParamSpec) else [leaf for branch in tree.values() for leaf in _leaves(branch)]
