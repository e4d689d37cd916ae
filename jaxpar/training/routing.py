"""Routing replay: the experts of each token as one run chose them, recorded for another run to use.

A folder has a file for each batch, `00000012.npy` of batch 12: [row, token, layer, choice], int16, as
`jaxpar.layers.experts.replay` describes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int, UInt

from jaxpar.checkpoint.errors import reason
from jaxpar.config import Config, ModelConfig, UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.reading.text_file import LONGEST_POINTER, check_pointer, check_regular
from jaxpar.config.spelling import named
from jaxpar.data.tokens.token_file import HEADER_ERRORS
from jaxpar.layers.context import UPDATES
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layers.dropout import SEED
from jaxpar.layers.experts.feed_forward import Experts
from jaxpar.layers.experts.replay import EXPERTS, replayed_shape
from jaxpar.layers.experts.routing import NO_EXPERT
from jaxpar.layout.stages import stages_of
from jaxpar.mesh.axes import DATA_AXES, vary
from jaxpar.mesh.collectives import sum_over_stages
from jaxpar.mesh.layer_order import LAYERS, own_layers
from jaxpar.mesh.materialize import to_storage
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch, DecoderStages
from jaxpar.training.step.batches import BatchPlacer
from jaxpar.training.step.train_step import TrainStep

type Routed = Int[np.ndarray, "row token layer choice"]


class Recorder:
    """Computes which experts a step uses, before it changes the weights."""

    def __init__(self, step: TrainStep, placer: BatchPlacer):
        self._function, self._seed = _routing_function(step), step.arguments.seed
        self._unordered = np.argsort(placer.order)

    def __call__(self, weights: Weights, batch: dict[str, jax.Array], updates: int | jax.Array) -> Routed:
        """The experts of a placed batch for all weights of a state (`all_weights`), in the order of the data.

        `updates` are those before the step (`TrainState.applied`), with which routers may anneal.
        """
        found = self._function(weights, batch, jnp.int32(updates), self._seed)
        found = np.asarray(found if jax.process_count() == 1 else process_allgather(found, tiled=True))
        return found.reshape(-1, *found.shape[2:])[:, self._unordered].astype(np.int16)


def _routing_function(step: TrainStep) -> Any:
    """Compiled (all weights of a state, batch, updates, seed) -> experts [microbatch, row, token, layer, choice]."""
    layout = step.layout
    model, placements = layout.config.model, layout.placements
    layers, choices = replayed_shape(model)

    def of_chunk(chunk: int, weights: Weights, stages: DecoderStages, x: jax.Array, tokens: Any) -> tuple[Any, Any]:
        """(the chunk's output, by layer the number of each expert plus 1) of a chunk of this pipeline rank."""
        found = vary(jnp.zeros((*x.shape[:2], layers, choices), jnp.int32))
        for kind, row in layout.order.slots:
            stack = stages.loop.stack(kind)
            number = stack.order.own(chunk)[row]
            w = stack.load(own_layers(weights[LAYERS], kind), chunk * stack.order.rows_per_chunk + row)
            layer: Any = stages.prototype(kind)
            if isinstance(layer.mlp, Experts):
                layer.mlp.records = True
            y, report = with_weights(layer, w)(x, number, tokens[kind], stages.attend[kind], True)
            x = stack.unless_padding(number, y, x)
            if EXPERTS in report:
                own = jnp.pad(report[EXPERTS] + 1, ((0, 0), (0, 0), (0, choices - report[EXPERTS].shape[-1])))
                found = jnp.where(jnp.arange(layers)[:, None] == number, own[:, :, None], found)
        return x, found

    def of_microbatch(weights: Weights, batch: Batch) -> jax.Array:
        """Every rank runs the chunk that it has in the place of the one whose turn it is, and that one's counts."""
        stages = stages_of(layout, train=True)
        x, tokens = stages.embed(weights, batch), stages.token_context(batch)
        total = jnp.int32(0)
        for chunk, rank in enumerate(layout.schedule.rank_of):
            y, found = of_chunk(layout.schedule.chunks_of[rank].index(chunk), weights, stages, x, tokens)
            counts = lax.axis_index("pipe") == rank
            x = sum_over_stages(jnp.where(counts, y, 0))
            total += jnp.where(counts, found, 0)
        return lax.psum(total, "pipe") + NO_EXPERT

    def function(weights: Weights, batch: Batch, updates: jax.Array, seed: UInt[Array, ""]) -> jax.Array:
        weights = to_storage(weights, placements)
        parts = [jax.tree.map(lambda a, part=part: a[part], batch) for part in range(layout.plan.microbatches)]
        return jnp.stack([of_microbatch(weights, part | {UPDATES: updates, SEED: seed}) for part in parts])

    out: Any = PartitionSpec(None, DATA_AXES, ("context", "tensor"))
    return step.compiled(function, (layout.weights, layout.batch.partitions, PartitionSpec(), PartitionSpec()), out)


class RoutingFolder:
    """The files of a folder, which all processes of a run share."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def write(self, batch: int, routed: Routed) -> None:
        """Write the file of a batch: the first process of a run does."""
        if jax.process_index():
            return
        self.path.mkdir(parents=True, exist_ok=True)
        np.save(self._file(batch), routed)

    def read(self, examples: Int[np.ndarray, " rows"], config: Config) -> Routed:
        """The experts of the examples of a batch, int32.

        Raises:
            UserError: the file is missing, of another shape, or has numbers of experts that the model does not have.
        """
        size = config.data.batch_size
        file = self._file(int(examples[0]) // size)
        shape = (size, config.data.sequence_length, *replayed_shape(config.model))
        try:
            check_regular(file, f"data.routing: {named(file)}")
            with file.open("rb") as opened:
                check_pointer(opened.read(LONGEST_POINTER), file, f"data.routing: {named(file)}")
            found = np.lib.format.open_memmap(file, mode="r")  # np.load would open archives too.
        except UserError:
            raise
        except (OSError, *HEADER_ERRORS) as error:
            raise UserError(f"data.routing: cannot read {named(file)}: {reason(error)}") from None
        if found.shape != shape or found.dtype.kind != "i":
            raise UserError(
                f"data.routing: {named(file)} has {list(found.shape)} numbers of {found.dtype}; expected {list(shape)} "
                "whole numbers: rows, tokens, layers and choices"
            )
        own = np.asarray(found[examples % size], np.int32)
        most = _most(config.model)
        if own.min() < NO_EXPERT or own.max() >= most:
            raise UserError(
                f"data.routing: {named(file)} has experts from {own.min()} to {own.max()}; expected {NO_EXPERT} (none) "
                f"to {most - 1}"
            )
        return own

    def _file(self, batch: int) -> Path:
        return self.path / f"{batch:08}.npy"


def _most(model: ModelConfig) -> int:
    """Experts of the kind of layers with most."""
    return max(own.experts.count for own in kind_models(model).values() if own.experts is not None)
