"""Elements and bytes of the parts of a model on one device, as `mesh.placements` lays them: from declarations alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import jax

from jaxpar.config import Config
from jaxpar.config.axes import ROUTED_AXES
from jaxpar.config.kinds import kind_counts, kind_models
from jaxpar.layers.declared import declare_layer
from jaxpar.memory.layer_shape import FLOAT32_BYTES
from jaxpar.mesh.layer_order import LAYERS, LayerOrder
from jaxpar.mesh.parameters import Nested, ParamSpec, Specs
from jaxpar.mesh.placements import SHARD_ORDER
from jaxpar.mesh.rules import compute_rules, rules_of
from jaxpar.model.decoder import decoder_specs
from jaxpar.optim.optimizer import rule_of
from jaxpar.optim.rule import Rule, RuleRequest


class Weight(NamedTuple):
    """Elements of one weight on a device; for the layers' weights, those of one layer."""

    name: str
    """Names as in `StepLayout.weight_names`."""
    elements: int
    """Elements of the whole weight."""
    compute: int
    """Elements of it on a device as it is multiplied."""
    sharded: int
    """Elements on a device when they are split over `SHARD_AXES` too."""
    updated: int
    """Split like its state where that is sharded: like `sharded`, or over replicas too."""
    state: float
    """Bytes of master weight, moments and average, split like `updated`."""
    full_state: float
    """Elements that are split like `compute`."""
    matrices: bool
    """Whether its rule sees matrices."""
    trained: bool
    """Whether it has gradients, moments and a master copy."""
    routed: bool
    """Whether it is split over `ROUTED_AXES`, and not sharded over them."""
    feed_forward: bool = False
    """Whether it is one of the block behind a layer's mixer."""

    def local(self, sharded: bool) -> int:
        """One or the other."""
        return self.sharded if sharded else self.compute


class Elements(NamedTuple):
    """Elements of several weights on a device."""

    compute: int
    """Elements on a device as they are multiplied."""
    sharded: int
    """Elements on a device when they are split over `SHARD_AXES` too."""

    @staticmethod
    def from_weights(weights: Iterable[Weight], trained: bool) -> Elements:
        """Elements of those `weights` that are trained, or of the others."""
        selected = [one for one in weights if one.trained == trained]
        return Elements(sum(one.compute for one in selected), sum(one.sharded for one in selected))


class Part(NamedTuple):
    """Elements of one part of the model on a device; for layers, those of one layer."""

    weights: tuple[Weight, ...]
    compute: int
    """Elements on a device as they are multiplied."""
    sharded: int
    """Elements on a device when they are split over `SHARD_AXES` too."""
    trained: Elements
    """Elements of trained weights."""
    frozen: Elements
    """Elements of frozen weights."""
    updated: int
    """Elements of trained weights, split like their state where that is sharded."""
    state: float
    """Bytes of master weights and moments if those are split like `updated`."""
    full_state: float
    """The same if they are split like `compute`."""

    @property
    def halves(self) -> tuple[list[Weight], list[Weight]]:
        """The weights of a layer without its feed-forward, and those of that; norms are among the first."""
        feed_forward = [weight for weight in self.weights if weight.feed_forward]
        return [weight for weight in self.weights if not weight.feed_forward], feed_forward

    @staticmethod
    def from_weights(weights: Iterable[Weight]) -> Part:
        """The sum over several weights."""
        weights = tuple(weights)
        return Part(
            weights,
            sum(one.compute for one in weights),
            sum(one.sharded for one in weights),
            Elements.from_weights(weights, trained=True),
            Elements.from_weights(weights, trained=False),
            sum(one.updated for one in weights if one.trained),
            sum(one.state for one in weights),
            sum(one.full_state for one in weights),
        )


class Parts(NamedTuple):
    """The parts of a model on a device."""

    embed_and_head: dict[str, Part]
    """Embedding, head and the norm before it, by name."""
    layers: dict[str, Part]
    """Weights of one layer of each kind."""


class PartBytes(NamedTuple):
    """Bytes by part of the model."""

    layers: int
    embedding: int
    head: int
    final_norm: int

    @property
    def total(self) -> int:
        """Bytes of the whole model."""
        return sum(self)


type _Ranks = tuple[int, int, int, int, int]
"""The arguments of `Weights.parts`: tensor, shards, pipe, routed, replicas."""


@dataclass(frozen=True)
class Weights:
    """The weights of one configuration, on any mesh; its `parallel` is not used."""

    config: Config

    @cached_property
    def _specs(self) -> Specs:
        """The parameter specs of the model, with one layer of each kind."""
        return decoder_specs(self.config, LayerOrder.from_kinds([0], [self.kinds]))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the model's layers."""
        return tuple(kind_counts(self.config.model))

    @cached_property
    def _feed_forwards(self) -> frozenset[tuple[str, ...]]:
        """Path in the specs of the weights of the blocks behind mixers."""
        kinds = kind_models(self.config.model).items()
        return frozenset((LAYERS, kind, declare_layer(layer).feed_forward.name) for kind, layer in kinds)

    @cached_property
    def _parts(self) -> dict[_Ranks, Parts]:
        return {}

    def parts(self, tensor: int, shards: int, pipe: int = 1, routed: int = 1, replicas: int = 1) -> Parts:
        """Elements and state of each part.

        Args:
            tensor: ranks that share every matrix.
            shards: ranks that ZeRO shards over.
            pipe: ranks that share embedding and head; 1 where they do not.
            routed: ranks among `shards` that split the matrices among which a router chooses.
            replicas: those that share the state of a weight.
        """
        key = tensor, shards, pipe, routed, replicas
        if key not in self._parts:
            embed_and_head = {
                name: self._part((name,), tree, key) for name, tree in self._specs.items() if name != LAYERS
            }
            paths = {kind: (LAYERS, kind) for kind in self.kinds}
            specs_of = lambda kind: self._specs[LAYERS][kind]
            self._parts[key] = Parts(
                embed_and_head, {kind: self._part(path, specs_of(kind), key) for kind, path in paths.items()}
            )
        return self._parts[key]

    def _part(self, path: tuple[str, ...], tree: Nested[ParamSpec] | ParamSpec, ranks: _Ranks) -> Part:
        """The weights of the tree at `path`."""
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return Part.from_weights(
            self._weight(path, tuple(key.key for key in below), spec, ranks) for below, spec in leaves
        )

    def _weight(self, path: tuple[str, ...], below: tuple[str, ...], spec: ParamSpec, ranks: _Ranks) -> Weight:
        tensor, shards, pipe, routed, replicas = ranks
        sizes = {"tensor": tensor, "pipe": pipe} | dict.fromkeys(ROUTED_AXES, routed)
        rules = rules_of(spec, compute_rules(shared_embed_and_head=pipe > 1), sizes)
        shards = shards // routed if spec.routed else shards
        dims = {name: size for name, size in zip(spec.axes, spec.shape, strict=True) if name != "layers"}
        local = {name: size // prod(sizes[axis] for axis in getattr(rules, name)) for name, size in dims.items()}
        compute, name = prod(local.values()), ".".join((*path, *below))
        axes = SHARD_ORDER if len(dims) > 1 else ()
        divided = next((axis for axis in axes if axis in local and local[axis] % shards == 0), None)
        split = local if divided is None else local | {divided: local[divided] // shards}
        over = axes if shards == 1 or divided is None else (divided,)
        shared = next((axis for axis in over if axis in split and split[axis] % replicas == 0), None)
        updated = split if shared is None else split | {shared: split[shared] // replicas}
        sharded, state, whole = prod(split.values()), self._state_bytes(spec, updated), self._state_bytes(spec, local)
        return Weight(
            name,
            prod(dims.values()),
            compute,
            sharded,
            prod(updated.values()),
            state,
            whole,
            spec.trained and self._rule(spec).granularity == "matrix",
            spec.trained,
            bool(spec.routed),
            feed_forward=(*path, *below)[:3] in self._feed_forwards,
        )

    def _state_bytes(self, spec: ParamSpec, local: Mapping[str, int]) -> float:
        """Bytes of master weight, moments and average on a device that has `local` of each dim."""
        if not spec.trained:
            return 0.0
        sizes = [local.get(axis, 1) for axis in spec.axes]  # one layer
        state = sum(array.local_bytes(spec, sizes) for array in self._rule(spec).state.values())
        average, islands = self.config.optimizer.ema is not None, self.config.islands
        more = 2 * (islands.share_mesh and islands.offload == "none") + 2 * islands.eager
        return state + FLOAT32_BYTES * (1 + average + more) * prod(sizes)

    def _rule(self, spec: ParamSpec) -> Rule:
        """The rule of a weight."""
        return rule_of(RuleRequest(self.config.optimizer, spec, self.config.precision.moments))
