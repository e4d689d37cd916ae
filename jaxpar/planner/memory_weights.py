"""Elements and bytes of the parts of a model on one device, as `mesh.placements` lays them: from declarations alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from jaxpar.config import Config
from jaxpar.config.counting import kv_heads
from jaxpar.memory.layer_shape import FLOAT32_BYTES
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.parameters import ParamSpec, Tree
from jaxpar.mesh.placements import SHARD_ORDER
from jaxpar.mesh.rules import compute_rules
from jaxpar.model.decoder import decoder_specs
from jaxpar.optim.moments import Blocks, form_of

HALVES = ("attention", "mlp")
"""Of a layer, what has its large weights."""


class Part(NamedTuple):
    """Elements of one part of the model on a device; of the layers, of one layer."""

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
        return decoder_specs(self.config, LayerOrder.of_one_rank(1))

    @cached_property
    def _parts(self) -> dict[tuple[int, int, int], dict[str, Part]]:
        return {}

    def parts(self, tensor: int, shards: int, pipe: int = 1) -> dict[str, Part]:
        """Elements and state of each part.

        Args:
            tensor: ranks that share every matrix.
            shards: ranks that ZeRO shards over.
            pipe: ranks that share the ends of the model; 1 where they do not.
        """
        key = tensor, shards, pipe
        if key not in self._parts:
            self._parts[key] = {name: self._part(tree, *key) for name, tree in self._specs.items()}
        return self._parts[key]

    def largest_of_halves(self, tensor: int, shards: int, pipe: int = 1) -> tuple[Part, ...]:
        """For attention and the feed-forward of a layer, the weight with the most elements."""
        layer = self._specs["layers"]
        each = lambda half: [self._part(spec, tensor, shards, pipe) for spec in _leaves(layer[half])]
        return tuple(max(each(half), key=lambda part: part.compute) for half in HALVES)

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
