"""What a case takes of a device whatever its layers keep: weights, gradients, state, and what works on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxpar.config import Config
from jaxpar.config.counting import padded_vocab
from jaxpar.memory.layer_shape import ITEM_BYTES, LayerShape, between_bytes, matmul_bytes
from jaxpar.memory.streaming import PIECE_BYTES, PIECES
from jaxpar.planner.memory_weights import Ends, Parts, Weights

BATCH_BYTES = 6 * 4
"""Of a token: tokens, labels, mask, segments, positions, slots."""


class Case(NamedTuple):
    """What memory depends on, beside what layers keep and the slots of the pipeline."""

    pipe: int
    shards: int
    """Ranks that ZeRO shards over: fsdp, expert and context."""
    context: int
    tensor: int
    rows: int
    """Of a microbatch on a device."""
    microbatches: int
    zero: int
    slots: tuple[str, ...]
    """The kind of each slot of a chunk: of the longest one's layers, and what others have besides."""
    virtual_stages: int = 1
    state: str = "none"
    """Where the optimizer's state rests: `memory.optimizer_offload`."""
    resident: int = 0
    """Bytes of it that stay on the device though it rests on the host: `memory.optimizer_resident`."""
    shared_ends: bool = False

    @property
    def rows_of(self) -> Counter[str]:
        """Rows of each kind in a chunk, those that pad the stacks included."""
        return Counter(self.slots)

    @property
    def ends(self) -> int:
        """Ranks that share embedding and head beside the tensor ranks."""
        return self.pipe if self.shared_ends else 1

    @property
    def alone(self) -> bool:
        """Whether one microbatch goes through a step without a pipeline, so that nothing accumulates."""
        return self.microbatches == 1 and self.pipe == 1


class Work(NamedTuple):
    """Bytes that live while a part of the model is differentiated."""

    weights: int
    gradients: int
    temporaries: int


class Fixed(NamedTuple):
    """Bytes of a case, whatever its layers keep."""

    optimizer: int
    host: int
    head: Work
    """While the loss is differentiated, its gradient left out."""
    head_gradient: float
    zeros: bool
    """Whether XLA keeps zeros as large as that for each run of ticks with a loss."""
    layer: Work
    """In a layer's backward, its activations left out."""
    leaving: Work
    """Where the state rests in files: all weights and gradients, and those that are held once more."""
    chunk: int
    """Weights of a chunk that is held whole."""
    widening: float
    """Bytes of a gradient for each byte of the weight in compute dtype."""
    for_weights: int
    """What a split backward leaves of a chunk for W."""
    between: int
    """The residual stream, as it goes from rank to rank."""
    batch: int


def fixed_bytes(
    config: Config, weights: Weights, case: Case, shapes: Mapping[str, LayerShape], loss_tiles: int
) -> Fixed:
    """The bytes of a case.

    Args:
        config: of the model; its `parallel` plays no part.
        weights: of the same.
        case: whose bytes they are.
        shapes: of a layer of each kind.
        loss_tiles: parts that the tokens of a microbatch take the head in.
    """
    return _Counted(config, weights, case, shapes, loss_tiles).all()


@dataclass(frozen=True)
class _Counted:
    """The bytes of one case: the sums of `training.memory_estimate`, whose names these functions have."""

    config: Config
    weights: Weights
    case: Case
    shapes: Mapping[str, LayerShape]
    loss_tiles: int

    def all(self) -> Fixed:
        """Every one of them."""
        case = self.case
        state, host = self._state()
        weights, gradients = self._stored, self._accumulated
        head, head_gradient, zeros = self._in_head(weights, gradients)
        return Fixed(
            optimizer=state,
            host=host,
            head=head,
            head_gradient=head_gradient,
            zeros=zeros,
            layer=self._in_layer(weights, gradients),
            leaving=Work(weights.all, gradients.all, self._turned() if case.state == "file" else 0),
            chunk=self._widths[0] * int(self._in_layers("compute", case.rows_of)),
            widening=self._widening,
            for_weights=self._kept_for_weights(),
            between=between_bytes(self.shape),
            batch=BATCH_BYTES * self.shape.tokens * case.microbatches,
        )

    @cached_property
    def parts(self) -> Parts:
        """Elements and state of each part."""
        return self.weights.parts(self.case.tensor, self.case.shards, self.case.ends)

    @property
    def shape(self) -> LayerShape:
        """Of one kind, for what all of them have in common."""
        return next(iter(self.shapes.values()))

    @cached_property
    def _local_rows(self) -> dict[str, int]:
        """Rows of each kind's stack on a device."""
        return {kind: rows * self.case.virtual_stages for kind, rows in self.case.rows_of.items()}

    def _in_layers(self, what: str, rows: Mapping[str, int]) -> float:
        """`what` (a field of `Part`) of so many layers of each kind."""
        return sum(getattr(own, what) * rows[kind] for kind, own in self.parts.layers.items())

    @cached_property
    def _widths(self) -> tuple[int, int, int]:
        """Bytes of compute, storage and gradient."""
        precision = self.config.precision
        storage = precision.storage or precision.compute
        return ITEM_BYTES[precision.compute], ITEM_BYTES[storage], ITEM_BYTES[precision.gradient]

    @property
    def _widening(self) -> float:
        compute, _, gradient = self._widths
        return gradient / compute

    def _bytes(self, width: int, layers_sharded: bool, ends_sharded: bool) -> Ends:
        form = lambda sharded: "sharded" if sharded else "compute"
        ends = {name: width * getattr(part, form(ends_sharded)) for name, part in self.parts.ends.items()}
        layers = width * int(self._in_layers(form(layers_sharded), self._local_rows))
        return Ends(layers, *(ends.get(name, 0) for name in Ends._fields[1:]))

    @cached_property
    def _stored(self) -> Ends:
        _, width, _ = self._widths
        case, precision = self.case, self.config.precision
        sharded = case.zero >= 3
        ends = sharded and case.pipe == 1
        same = (precision.storage or precision.compute) == precision.master
        if same and (case.shards == 1 or case.zero == 0 or ends) and case.state == "none":
            return Ends(0, 0, 0, 0)
        return self._bytes(width, sharded, ends)

    @cached_property
    def _accumulated(self) -> Ends:
        _, _, width = self._widths
        zero, whole = self.case.zero, self.case.pipe == 1
        return self._bytes(width, zero >= 3 or (zero == 2 and whole), zero >= 2 and whole)

    @property
    def _layer(self) -> int:
        """Of the largest kind."""
        return self._widths[0] * max(own.compute for own in self.parts.layers.values())

    @property
    def _gathered_layers(self) -> int:
        return 2 * self._layer if self.case.zero >= 3 and self.case.shards > 1 else 0

    def _state(self) -> tuple[int, int]:
        """On the device, and in the host's memory: all of it, or the buffers on its way to files."""
        name = "state" if self.case.zero >= 1 else "whole_state"
        ends = sum(getattr(own, name) for own in self.parts.ends.values())
        total = int(ends + self._in_layers(name, self._local_rows))
        if self.case.state == "none":
            return total, 0
        if self.case.state == "file":
            return 0, PIECES * self._filed_piece()
        host = max(0, total - self.case.resident)
        return total - host + min(host, PIECES * max(PIECE_BYTES, self._largest_piece())), host

    def _largest_piece(self) -> int:
        """Bytes of a layer of the largest weight, or of all of a weight under Adafactor; other rows are small."""
        name = "largest" if self.case.zero >= 1 else "whole_largest"
        each = {kind: getattr(own, name) for kind, own in self.parts.layers.items()}
        if self.config.optimizer.name == "adafactor":
            ends = [getattr(own, name) for own in self.parts.ends.values()]
            return int(max(*ends, *(size * self._local_rows[kind] for kind, size in each.items())))
        return int(max(each.values()))

    def _filed_piece(self) -> int:
        """Bytes of the largest piece that comes from a file: as many rows of one weight as `PIECE_BYTES` has room for,
        a layer at least; or all of a weight under Adafactor."""
        if self.config.optimizer.name == "adafactor":
            return self._largest_piece()
        name = "largest" if self.case.zero >= 1 else "whole_largest"
        largest = 0
        layers = [(getattr(own, name), self._local_rows[kind]) for kind, own in self.parts.layers.items()]
        for row, rows in [*layers, *((1, getattr(own, name)) for own in self.parts.ends.values())]:
            largest = max(largest, int(row * min(rows, max(1, PIECE_BYTES // row))))
        return largest

    def _in_head(self, weights: Ends, gradients: Ends) -> tuple[Work, float, bool]:
        """While the loss is differentiated; its gradient apart, and whether zeros of that size are kept."""
        case, model = self.case, self.config.model
        name = "embedding" if model.tied else "head"
        gathers = case.zero >= 3 and case.pipe == 1 and self.parts.ends[name].sharded < self.parts.ends[name].compute
        head = self._widths[0] * self.parts.ends[name].compute
        tiles = self.loss_tiles
        logits = 4 * (self.shape.tokens // tiles) * padded_vocab(model) // (case.tensor * case.ends)
        if case.alone:
            gradients = Ends(gradients.layers, 0, 0, 0)
            weights = weights if model.tied else weights._replace(embedding=0)
        layers = self._gathered_layers // (1 if case.pipe > 1 else 2)
        anew = model.tied or case.tensor > 1 or (case.alone and not gathers)
        work = Work(weights.all + gathers * head + layers, gradients.all, logits * (3 if tiles == 1 else 4) // 2)
        return work, head * self._widening, tiles > 1 and not anew

    def _in_layer(self, weights: Ends, gradients: Ends) -> Work:
        """In a layer's backward, without what it makes again."""
        case, shape = self.case, self.shape
        if case.alone:
            weights = Ends(weights.layers, 0, 0, 0)
            gradients = gradients if self.config.model.tied else gradients._replace(embedding=0)
        whole = shape.tokens * shape.embed * self._widths[0]
        return Work(
            weights.all + self._gathered_layers,
            gradients.all + int(self._layer * self._widening),
            4 * whole if case.tensor > 1 else 0,
        )

    def _turned(self) -> int:
        """The largest gradient of attention and of the feed-forward, which XLA holds once more to let them leave."""
        case, width = self.case, self._widths[2]
        sharded = case.zero >= 3 or (case.zero == 2 and case.pipe == 1)
        largest = self.weights.largest_of_halves(case.tensor, case.shards, case.ends)
        size = lambda own: own.sharded if sharded else own.compute
        return sum(width * max(size(own) * self._local_rows[kind] for kind, own in half.items()) for half in largest)

    def _kept_for_weights(self) -> int:
        """Inputs and output gradients of all matmuls of a chunk: what a split backward leaves for W."""
        return sum(rows * matmul_bytes(self.shapes[kind]) for kind, rows in self.case.rows_of.items())
