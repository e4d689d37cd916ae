"""What a case takes of a device whatever its layers keep: weights, gradients, state, and what works on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxpar.config import Config
from jaxpar.config.counting import padded_vocab
from jaxpar.memory.layer_shape import ITEM_BYTES, LayerShape, between_bytes, matmul_bytes
from jaxpar.memory.streaming import PIECE_BYTES, PIECES
from jaxpar.planner.memory_weights import Ends, Part, Weights

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
    chunk_layers: int
    """Of the longest chunk."""
    virtual_stages: int = 1
    state: str = "none"
    """Where the optimizer's state rests: `memory.optimizer_offload`."""
    resident: int = 0
    """Bytes of it that stay on the device though it rests on the host: `memory.optimizer_resident`."""
    shared_ends: bool = False

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


def fixed_bytes(config: Config, weights: Weights, case: Case, shape: LayerShape, loss_tiles: int) -> Fixed:
    """The bytes of a case.

    Args:
        config: of the model; its `parallel` plays no part.
        weights: of the same.
        case: whose bytes they are.
        shape: of its layers.
        loss_tiles: parts that the tokens of a microbatch take the head in.
    """
    return _Counted(config, weights, case, shape, loss_tiles).all()


@dataclass(frozen=True)
class _Counted:
    """The bytes of one case: the sums of `training.memory_estimate`, whose names these functions have."""

    config: Config
    weights: Weights
    case: Case
    shape: LayerShape
    loss_tiles: int

    def all(self) -> Fixed:
        """Every one of them."""
        case, layer = self.case, self._layer
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
            chunk=layer * case.chunk_layers,
            widening=self._widening,
            for_weights=self._kept_for_weights(),
            between=between_bytes(self.shape),
            batch=BATCH_BYTES * self.shape.tokens * case.microbatches,
        )

    @cached_property
    def parts(self) -> dict[str, Part]:
        """Elements and state of each part."""
        return self.weights.parts(self.case.tensor, self.case.shards, self.case.ends)

    @property
    def _local_layers(self) -> int:
        """Rows of the stack on a device."""
        return self.case.chunk_layers * self.case.virtual_stages

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
        def size(name: str) -> int:
            if name not in self.parts:
                return 0
            part, layers = self.parts[name], name == "layers"
            elements = part.sharded if (layers_sharded if layers else ends_sharded) else part.compute
            return width * elements * (self._local_layers if layers else 1)

        return Ends(*map(size, Ends._fields))

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
        return self._widths[0] * self.parts["layers"].compute

    @property
    def _gathered_layers(self) -> int:
        return 2 * self._layer if self.case.zero >= 3 and self.case.shards > 1 else 0

    def _state(self) -> tuple[int, int]:
        """On the device, and in the host's memory: all of it, or the buffers on its way to files."""
        name = "state" if self.case.zero >= 1 else "whole_state"
        each = {part: getattr(own, name) for part, own in self.parts.items()}
        total = int(sum(size * (self._local_layers if part == "layers" else 1) for part, size in each.items()))
        if self.case.state == "none":
            return total, 0
        if self.case.state == "file":
            return 0, PIECES * self._filed_piece()
        host = max(0, total - self.case.resident)
        return total - host + min(host, PIECES * max(PIECE_BYTES, self._largest_piece())), host

    def _largest_piece(self) -> int:
        """Bytes of a layer of the largest weight, or of all of a weight under Adafactor; other rows are small."""
        name = "largest" if self.case.zero >= 1 else "whole_largest"
        each = {part: getattr(own, name) for part, own in self.parts.items()}
        if self.config.optimizer.name == "adafactor":
            return int(max(size * (self._local_layers if part == "layers" else 1) for part, size in each.items()))
        return int(each["layers"])

    def _filed_piece(self) -> int:
        """Bytes of the largest piece that comes from a file: as many rows of one weight as `PIECE_BYTES` has room for,
        a layer at least; or all of a weight under Adafactor."""
        if self.config.optimizer.name == "adafactor":
            return self._largest_piece()
        name = "largest" if self.case.zero >= 1 else "whole_largest"
        largest = 0
        for part, own in self.parts.items():
            row, rows = (getattr(own, name), self._local_layers) if part == "layers" else (1, getattr(own, name))
            largest = max(largest, int(row * min(rows, max(1, PIECE_BYTES // row))))
        return largest

    def _in_head(self, weights: Ends, gradients: Ends) -> tuple[Work, float, bool]:
        """While the loss is differentiated; its gradient apart, and whether zeros of that size are kept."""
        case, model = self.case, self.config.model
        name = "embedding" if model.tied else "head"
        gathers = case.zero >= 3 and case.pipe == 1 and self.parts[name].sharded < self.parts[name].compute
        head = self._widths[0] * self.parts[name].compute
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
        return sum(width * (own.sharded if sharded else own.compute) * self._local_layers for own in largest)

    def _kept_for_weights(self) -> int:
        """Inputs and output gradients of all matmuls of a chunk: what a split backward leaves for W."""
        return self.case.chunk_layers * matmul_bytes(self.shape)
