"""Bytes of the weights and gradients of a case that a device stores: between steps, and while microbatches are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxpar.config import Config
from jaxpar.config.kinds import kind_model
from jaxpar.layers.matmul_formats import quantized_matrices
from jaxpar.layout.choices.matmul import per_use_reason
from jaxpar.layout.choices.matmul_quantization import quantized_rows
from jaxpar.layout.memory.case import Case
from jaxpar.layout.memory.weights import Part, PartBytes, Parts, Weight
from jaxpar.memory.layer_shape import FLOAT32_BYTES, ITEM_BYTES
from jaxpar.precision.recipe import TILES


class Widths(NamedTuple):
    """Bytes of a number in three dtypes of the configuration."""

    compute: int
    storage: int
    gradient: int


@dataclass(frozen=True)
class StoredBytes:
    """The weights and gradients of one case; of master weights and moments see `StateBytes`."""

    config: Config
    parts: Parts
    case: Case

    @cached_property
    def rows(self) -> dict[str, int]:
        """Rows of each kind's stack on a device."""
        return self.case.local_rows

    @cached_property
    def widths(self) -> Widths:
        """Bytes of an element that is stored."""
        precision = self.config.precision
        storage = precision.storage or precision.compute
        return Widths(*(ITEM_BYTES[dtype] for dtype in (precision.compute, storage, precision.gradient)))

    @cached_property
    def frozen(self) -> int:
        """Frozen weights, which are a part of the state."""
        sharded = self.case.zero >= 3
        return self._bytes(self.widths.storage, sharded, sharded and self.case.pipe == 1, "frozen").total

    @cached_property
    def weights(self) -> PartBytes:
        """Bytes of the copies that are made of the master weights."""
        width = self.widths.storage
        case, precision = self.case, self.config.precision
        sharded = case.zero >= 3
        vocab_sharded = sharded and case.pipe == 1
        same = (precision.storage or precision.compute) == "float32"
        if case.hpz > 1:
            return self._fetched()
        placed = case.state_replicas == 1 and (case.shards == 1 or case.zero == 0 or vocab_sharded)
        if same and placed and case.state == "none":
            return PartBytes(self._coded(sharded, True) + self._coded(sharded, False), 0, 0, 0)
        made = self._bytes(width, sharded, vocab_sharded, "trained")
        # Codes replace the copies of trained matrices; frozen ones are a part of the state, and their codes are made.
        return made._replace(
            layers=made.layers - (width - 1) * self._coded(sharded, True) + self._coded(sharded, False)
        )

    @cached_property
    def gradients(self) -> PartBytes:
        """Bytes of gradients that accumulate over microbatches."""
        return self._bytes(self.widths.gradient, self.gradients_sharded, self.embed_and_head_sharded, "trained")

    @property
    def arriving(self) -> int:
        """Bytes with the state on disk: weights come as arguments in storage dtype, sharded like their state, and what
        is not stored like that is gathered from them."""
        case = self.case
        if case.state != "file" or case.shards * case.state_replicas == 1 or case.zero == 0:
            return 0
        if case.state_replicas > 1:
            elements = sum(part.updated * self.rows[kind] for kind, part in self.parts.layers.items())
            return self.widths.storage * (elements + sum(part.updated for part in self.parts.embed_and_head.values()))
        arguments = self._bytes(self.widths.storage, True, True, "trained")
        embed_and_head = 0 if case.zero >= 3 and case.pipe == 1 else arguments.total - arguments.layers
        return embed_and_head + (0 if case.zero >= 3 else arguments.layers)

    def without_host_layers(self, parts: PartBytes) -> PartBytes:
        """`parts` without the layers that are on the host."""
        return parts._replace(layers=0) if self.case.layers_on_host else parts

    def reduced(self, weight: Weight) -> int:
        """A layer's elements in the accumulated gradients."""
        return weight.local(self.gradients_sharded)

    def chunk(self, which: str = "") -> int:
        """Elements of a chunk of layers as they are multiplied: of all weights, or of those that are `which`."""
        return int(self._layers_bytes("compute", self.case.rows_of, which))

    @property
    def embed_and_head_sharded(self) -> bool:
        """Whether gradients of embedding and head accumulate sharded."""
        return self.case.zero >= 2 and self.case.pipe == 1

    @property
    def gradients_sharded(self) -> bool:
        """Whether those of layers do."""
        return self.case.zero >= 3 or self.embed_and_head_sharded

    def _coded(self, sharded: bool, trained: bool) -> int:
        """Elements of matrices that are stored as codes of 8 bits, once per step, trained or frozen.

        Rows that may hold an exception are not among them. A case with several chunks a rank under ZeRO-3 counts none,
        because its schedule may gather chunks in the compute dtype.
        """
        case, recipe, offload = self.case, self.config.precision.matmul, self.config.memory.weights_offload
        holds = "its schedule" if case.virtual_stages > 1 and case.zero >= 3 else None
        if recipe is None or per_use_reason(recipe, case.state, offload, holds) is not None:
            return 0
        total, rows = 0, quantized_rows(self.config, case.slots)
        for kind, part in self.parts.layers.items():
            names = self._coded_names(kind)
            quantized = (one for one in part.weights if one.name.split(".")[-1] in names and one.trained == trained)
            elements = sum(one.local(sharded) for one in quantized)
            total += elements * rows[kind] * case.virtual_stages
        return total

    def _coded_names(self, kind: str) -> set[str]:
        """The matrices of a kind that become codes once per step, where any do."""
        groups = quantized_matrices(self.config, kind_model(self.config.model, kind))
        return {name for matrices in groups.values() for name in matrices}

    @property
    def square_scales(self) -> int:
        """Bytes of the scales of squares of all rows, where matrices become codes once per step: each rank has those of
        whole matrices as a tensor rank multiplies them."""
        case, recipe, offload = self.case, self.config.precision.matmul, self.config.memory.weights_offload
        tiles = TILES.get(recipe or "")
        holds = "its schedule" if case.virtual_stages > 1 and case.zero >= 3 else None
        if tiles is None or per_use_reason(recipe, case.state, offload, holds) is not None:
            return 0
        elements = 0
        for kind, part in self.parts.layers.items():
            names = self._coded_names(kind)
            elements += self.rows[kind] * sum(one.compute for one in part.weights if one.name.split(".")[-1] in names)
        return FLOAT32_BYTES * elements // tiles.size**2

    def _fetched(self) -> PartBytes:
        """Weights in an hpZ shard: several shards of each that is sharded, frozen ones too."""
        width = self.widths.storage
        copies = self.case.copies
        fetched = lambda part: sum(min(one.compute, one.sharded * copies(one.routed)) for one in part.weights)
        layers = sum(fetched(layer) * self.rows[kind] for kind, layer in self.parts.layers.items())
        if self.case.pipe > 1:
            return self._bytes(width, True, False, "trained")._replace(layers=width * layers)
        embed_and_head = {name: width * fetched(part) for name, part in self.parts.embed_and_head.items()}
        return PartBytes(width * layers, *(embed_and_head.get(name, 0) for name in PartBytes._fields[1:]))

    def _bytes(self, width: int, layers_sharded: bool, embed_and_head_sharded: bool, which: str) -> PartBytes:
        """Bytes of the weights that are `which`: trained or frozen."""
        form = lambda sharded: "sharded" if sharded else "compute"
        embed_and_head = {
            name: width * _elements(part, form(embed_and_head_sharded), which)
            for name, part in self.parts.embed_and_head.items()
        }
        layers = width * int(self._layers_bytes(form(layers_sharded), self.rows, which))
        return PartBytes(layers, *(embed_and_head.get(name, 0) for name in PartBytes._fields[1:]))

    def _layers_bytes(self, form: str, rows: Mapping[str, int], which: str) -> float:
        """`_elements` of this number of layers of each kind."""
        return sum(_elements(part, form, which) * rows[kind] for kind, part in self.parts.layers.items())


def _elements(part: Part, form: str, which: str) -> int:
    """Elements of a part, `compute` or `sharded`: of all its weights, or of those that are `which`."""
    return getattr(getattr(part, which) if which else part, form)
