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
from jax.sharding import PartitionSpec
from jaxtyping import Int

from jaxpar.checkpoint.errors import reason
from jaxpar.config import Config, ModelConfig, UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.spelling import named
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layers.experts.feed_forward import Experts
from jaxpar.layers.experts.replay import EXPERTS, replayed_shape
from jaxpar.layers.experts.routing import NO_EXPERT
from jaxpar.layout.stages import stages_of
from jaxpar.mesh.axes import DATA_AXES
from jaxpar.mesh.layer_order import LAYERS, own_layers
from jaxpar.mesh.materialize import to_storage
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.training.step.batches import BatchPlacer
from jaxpar.training.step.train_step import TrainStep

type Routed = Int[np.ndarray, "row token layer choice"]


class Recorder:
    """Computes which experts a step uses, before it changes the weights."""

    def __init__(self, step: TrainStep, placer: BatchPlacer):
        check_recorded(step.layout.config, step.layout.plan.axes.pipe)
        self._function, self._unordered = _routing_function(step), np.argsort(placer.order)

    def __call__(self, weights: Weights, batch: dict[str, jax.Array]) -> Routed:
        """The experts of a placed batch for all weights of a state (`all_weights`), in the order of the data."""
        found = np.asarray(jax.device_get(self._function(weights, batch)))
        return found.reshape(-1, *found.shape[2:])[:, self._unordered].astype(np.int16)


def check_recorded(config: Config, pipe: int) -> None:
    """Raise `UserError` for a run whose routing cannot be recorded."""
    where = f"run.record_routing: {config.run.record_routing}"
    if pipe > 1:
        raise UserError(f"{where}, and parallel.pipe is {pipe}; expected 1, since one program runs through all layers")
    if jax.process_count() > 1:
        raise UserError(f"{where}, and the run has {jax.process_count()} processes; expected one")


def _routing_function(step: TrainStep) -> Any:
    """Compiled (all weights of a state, batch) -> experts [microbatch, row, token, layer, choice]."""
    layout = step.layout
    model, placements = layout.config.model, layout.placements
    layers, choices = replayed_shape(model)

    def of_microbatch(weights: Weights, batch: Batch) -> jax.Array:
        stages = stages_of(layout, train=True)
        x, tokens = stages.embed(weights, batch), stages.token_context(batch)
        found = [jnp.full((*x.shape[:2], choices), NO_EXPERT)] * layers
        for number, (kind, row) in enumerate(layout.order.slots):
            w = stages.loop.stack(kind).load(own_layers(weights[LAYERS], kind), row)
            layer: Any = stages.prototype(kind)
            if isinstance(layer.mlp, Experts):
                layer.mlp.records = True
            x, report = with_weights(layer, w)(x, jnp.int32(number), tokens[kind], stages.attend[kind], True)
            if EXPERTS in report:
                own = report[EXPERTS]
                found[number] = jnp.pad(own, ((0, 0), (0, 0), (0, choices - own.shape[-1])), constant_values=NO_EXPERT)
        return jnp.stack(found, axis=2)

    def function(weights: Weights, batch: Batch) -> jax.Array:
        weights = to_storage(weights, placements)
        parts = [jax.tree.map(lambda a, part=part: a[part], batch) for part in range(layout.plan.microbatches)]
        # There is one stage, which the types do not show.
        return lax.psum(jnp.stack([of_microbatch(weights, part) for part in parts]), "pipe")

    out: Any = PartitionSpec(None, DATA_AXES, ("context", "tensor"))
    return step.compiled(function, (layout.weights, layout.batch), out)


class RoutingFolder:
    """The files of a folder."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def write(self, batch: int, routed: Routed) -> None:
        """Write the file of a batch."""
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
            found = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
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
