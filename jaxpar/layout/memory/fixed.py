"""Memory of a device that a case takes whatever its layers save: weights, gradients, state and temporaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from jaxpar.config import Config
from jaxpar.config.counting import padded_vocab
from jaxpar.layers.inputs.input import input_class
from jaxpar.layers.matmul_formats import quantized_matrices, routed_groups
from jaxpar.layout.memory.case import Case
from jaxpar.layout.memory.state import StateBytes
from jaxpar.layout.memory.stored import StoredBytes, Widths
from jaxpar.layout.memory.weights import PartBytes, Parts, Weight, Weights
from jaxpar.memory.layer_shape import FLOAT32_BYTES, LayerShape, between_bytes, matmul_bytes
from jaxpar.memory.streaming import PIECES
from jaxpar.optim.outer import message_bytes
from jaxpar.runtime.batch import CONTEXT, LABELS, MASK, union


class Work(NamedTuple):
    """Bytes that live while a part of the model is differentiated."""

    weights: int
    gradients: int
    temporaries: int


class Fixed(NamedTuple):
    """Bytes of a case, independently of what its layers keep."""

    optimizer: int
    host: int
    passing: int
    """The part of `optimizer` that is buffers of state on its way to the host or back."""
    update: int
    """While weights are updated, where layers are on the host; else 0."""
    head: Work
    """While the loss is differentiated, without its gradient."""
    head_gradient: int
    zeros: bool
    """Whether XLA keeps zeros of that size for each run of ticks with a loss."""
    layer: Work
    """Bytes in a layer's backward, without its activations."""
    leaving: Work
    """Bytes with the state on disk: all weights and gradients, and those that are in memory twice."""
    chunk: int
    """Weights of a chunk that is held whole."""
    chunk_gradients: int
    """Gradients of that chunk."""
    for_weights: int
    """Bytes that a split backward of a chunk saves for W."""
    between: int
    """The residual stream, as it is sent from rank to rank."""
    batch: int
    beside: int
    """A message that travels beside the step, and the gradients that wait for it."""


def fixed_bytes(
    config: Config, weights: Weights, case: Case, shapes: Mapping[str, LayerShape], loss_tiles: int
) -> Fixed:
    """The bytes of a case.

    Args:
        config: of the model; its `parallel` is not used.
        weights: of the same.
        case: whose bytes they are.
        shapes: of a layer of each kind.
        loss_tiles: tiles of a microbatch's tokens in the head.
    """
    return _Counted(config, weights, case, shapes, loss_tiles).total()


def parts_of(weights: Weights, case: Case) -> Parts:
    """Elements and state of each part of the model in a case."""
    return weights.parts(case.tensor, case.shards, case.vocab_ranks, case.routed, case.state_replicas)


def state_of(config: Config, weights: Weights, case: Case) -> StateBytes:
    """Master weights and moments of a case."""
    return StateBytes(config, parts_of(weights, case), case.zero >= 1, case.local_rows)


@dataclass(frozen=True)
class _Counted:
    """The bytes of one case."""

    config: Config
    weights: Weights
    case: Case
    shapes: Mapping[str, LayerShape]
    loss_tiles: int

    def total(self) -> Fixed:
        """Returns all bytes that do not depend on what layers save."""
        case, stored = self.case, self.stored
        state = StateBytes(self.config, self.parts, case.zero >= 1, stored.rows)
        device, passing, host = state.stored_bytes(case.state, case.resident)
        weights, gradients = stored.without_host_layers(stored.weights), stored.without_host_layers(stored.gradients)
        head, head_gradient, zeros = self._head_work(weights, gradients)
        return Fixed(
            optimizer=device + passing + stored.arriving,
            host=host + state.outer + stored.gradients.layers - gradients.layers,
            passing=passing,
            update=gradients.total + PIECES * (state.passing_piece + self._largest_gradient)
            if case.layers_on_host
            else 0,
            head=head,
            head_gradient=head_gradient,
            zeros=zeros,
            layer=self._layer_work(weights, gradients),
            leaving=Work(
                weights.total, gradients.total, self._turned() if case.state == "file" and not case.alone else 0
            ),
            chunk=self._widths.compute * stored.chunk(),
            chunk_gradients=self._widths.gradient * stored.chunk("trained"),
            for_weights=self._split_backward_bytes(),
            between=between_bytes(self.shape),
            batch=self._token_bytes * self.shape.tokens * case.microbatches + stored.square_scales,
            beside=self._beside(state),
        )

    def _beside(self, state: StateBytes) -> int:
        """The message of a fragment (what is sent, and the sum or the codes of all islands), and about one more copy of
        the gradients that are updated with: compiled programs took 85 to 114% of both, the most with int4."""
        islands = self.config.islands
        if not (islands.share_mesh and islands.overlaps_step):
            return 0
        received = 1 if islands.wire is None else self.config.parallel.islands
        message = (1 + received) * message_bytes(round(state.trained / islands.fragments), islands.wire)
        return int(FLOAT32_BYTES * state.trained) + message

    @property
    def _token_bytes(self) -> int:
        """Bytes of a token in a batch, without fields of layers and of the objective that few configurations have."""
        fields = union(CONTEXT, (MASK, LABELS), input_class(self.config.model).fields)
        return sum(np.dtype(field.dtype).itemsize * prod(field.dims) for field in fields if field.per == "token")

    @cached_property
    def parts(self) -> Parts:
        """Elements and state of each part."""
        return parts_of(self.weights, self.case)

    @cached_property
    def stored(self) -> StoredBytes:
        """The bytes of weights and gradients that are stored."""
        return StoredBytes(self.config, self.parts, self.case)

    @property
    def _widths(self) -> Widths:
        return self.stored.widths

    @property
    def shape(self) -> LayerShape:
        """The part of any one kind, for what all kinds have in common."""
        return next(iter(self.shapes.values()))

    def _quantized_bytes(self) -> int:
        """Quantized messages in a layer's backward: the gathered layer, and its largest gradient as it is sent and
        as it arrives."""
        case, quantized = self.case, self.config.parallel.quantized
        if case.shards == 1 or case.zero < 3:
            return 0
        weights = max(part.compute for part in self.parts.layers.values())
        largest = max(one.compute for one in self._layer_weights)
        gathered = weights * (quantized.weights is not None and case.hpz == 1)
        exchanged = {None: 0.0, "bfloat16": 4.0, "int8": 2.0, "int4": 1.0}[quantized.gradients] * largest
        return int(gathered + exchanged)

    @property
    def _layer(self) -> int:
        """The maximum over kinds."""
        return self._widths.compute * max(part.compute for part in self.parts.layers.values())

    @property
    def _gathered_layers(self) -> int:
        """The layers of a turn of the loop, and the one that is gathered or fetched from the host meanwhile."""
        if self.case.layers_on_host:
            return FLOAT32_BYTES * max(one.local(self.case.zero >= 1) for one in self._layer_weights) + 2 * self._layer
        return (1 + self.case.layer_unroll) * self._layer if self.case.zero >= 3 and self.case.shards > 1 else 0

    @property
    def _layer_weights(self) -> list[Weight]:
        """Weights of one layer of each kind."""
        return [weight for part in self.parts.layers.values() for weight in part.weights]

    @property
    def _largest_gradient(self) -> int:
        """Bytes of the gradients of a layer's weights, as they accumulate."""
        return self._widths.gradient * max(map(self.stored.reduced, self._layer_weights))

    def _head_work(self, weights: PartBytes, gradients: PartBytes) -> tuple[Work, int, bool]:
        """While the loss is differentiated; its gradient apart, and whether zeros of that size are kept.

        The head is gathered, and a tile's logits are there in float32 with their gradient. The first layer of the
        backward is gathered meanwhile; a pipeline has two at the same time. In tiles the head's gradient adds up in
        float32 from zeros as large as itself, which XLA keeps for every run of ticks with a loss; under tensor
        parallelism it allocates new ones, also for a tied head whose gradients accumulate sharded. The gradient of an
        untied head exists twice when it is scaled, without logits. With one microbatch alone, gradients of these
        are not needed before they are computed, and the embedding is not needed any more.
        """
        case, model = self.case, self.config.model
        name = "embedding" if model.tied else "head"
        part = self.parts.embed_and_head[name]
        gathers, head = case.zero >= 3 and case.pipe == 1 and part.sharded < part.compute, part.compute
        tiles = self.loss_tiles
        logits = 4 * (self.shape.tokens // tiles) * padded_vocab(model) // (case.tensor * case.vocab_ranks)
        if case.alone:
            gradients = PartBytes(gradients.layers, 0, 0, 0)
            weights = weights if model.tied else weights._replace(embedding=0)
        layers = self._gathered_layers // (1 if case.pipe > 1 else 1 + case.layer_unroll)
        anew = (model.tied and self.stored.embed_and_head_sharded) or case.tensor > 1 or (case.alone and not gathers)
        trained = part.trained.compute
        zeros = tiles > 1 and not anew and trained > 0
        gradient = trained * (FLOAT32_BYTES if zeros else self._widths.gradient)
        temporaries = logits * (3 if tiles == 1 or zeros or not trained else 4) // 2
        if zeros and not model.tied:
            temporaries = max(temporaries, gradient)
        stored = weights.total + self.stored.frozen
        work = Work(stored + gathers * self._widths.compute * head + layers, gradients.total, temporaries)
        return work, gradient, zeros

    def _layer_work(self, weights: PartBytes, gradients: PartBytes) -> Work:
        """Bytes in a layer's backward: its weights and the next one's, its whole gradients, without what it recomputes.

        Tensor ranks gather the inputs of both halves of a layer, and the cotangents of their outputs. With one
        microbatch alone, embedding and head are not needed any more, nor the gradient of the embedding yet. Gradients
        of layers that are on the host are written back weight by weight. The head's is computed after the layers where
        what it is computed from, the gradient of all logits, is smaller.
        """
        case, shape = self.case, self.shape
        if case.alone:
            weights = PartBytes(weights.layers, 0, 0, 0)
            gradients = gradients if self.config.model.tied else gradients._replace(embedding=0)
            if not self.config.model.tied and self.loss_tiles == 1:
                columns = padded_vocab(self.config.model) // (case.tensor * case.vocab_ranks)
                logits = self._widths.compute * shape.tokens * columns
                gradients = gradients._replace(head=min(gradients.head, logits))
        whole = shape.tokens * shape.embed * self._widths.compute
        whole_gradients = self._widths.gradient * max(part.trained.compute for part in self.parts.layers.values())
        layer_gradients = 2 * self._largest_gradient if case.layers_on_host else whole_gradients
        return Work(
            weights.total + self.stored.frozen + self._gathered_layers,
            gradients.total + layer_gradients,
            (4 * whole if case.tensor > 1 else 0) + self._quantized_bytes() + case.scratch + self._expert_bytes(),
        )

    def _expert_bytes(self) -> int:
        """Bytes that the backward of experts takes besides their activations; read from programs of four layers.

        Rows in the order of experts are recomputed, and XLA's loops over blocks of rows copy their arguments to have
        room for a block more: these rows, and the gradients of what they are multiplied to. (Kernels do not; it counts
        for them too.) The loop of further rounds takes nothing more: it begins when these are gone, and adds to the
        gradients of the first round in place.
        """
        routed = [shape for shape in self.shapes.values() if shape.model.experts is not None]
        return max(
            (self._expert_layer_bytes(shape) + self._quantized_operand_bytes(shape) for shape in routed), default=0
        )

    def _quantized_operand_bytes(self, shape: LayerShape) -> int:
        """Bytes of quantized operands of routed experts, where they are quantized: rows and gradients in the order of
        the tiles that gradients of matrices sum over, and once more those of a product in the order of rows."""
        groups = quantized_matrices(self.config, shape.model)
        if not any(group.name in groups for _, group in routed_groups(shape.model)):
            return 0
        return shape.sorted_bytes + sum(
            shape.sizes.get(name, 0) for name in ("expert_up", "expert_gate", "expert_hidden")
        )

    @staticmethod
    def _expert_layer_bytes(shape: LayerShape) -> int:
        return 2 * shape.sorted_bytes + sum(shape.sizes.get(name, 0) for name in ("expert_up", "expert_gate"))

    def _turned(self) -> int:
        """The largest gradients of mixers and of feed-forwards, which XLA copies to write them back: found in programs
        of 4 to 45 layers that add up microbatches, and not in those of one microbatch."""
        largest = lambda kind, half: max(map(self.stored.reduced, self.parts.layers[kind].halves[half]), default=0)
        stacks = self.stored.rows.items()
        return self._widths.gradient * sum(max(rows * largest(kind, half) for kind, rows in stacks) for half in (0, 1))

    def _split_backward_bytes(self) -> int:
        """Inputs and output gradients of all matmuls of a chunk: what a split backward keeps for W."""
        return sum(rows * matmul_bytes(self.shapes[kind]) for kind, rows in self.case.rows_of.items())
