"""A sampled continuation, by running the whole window again for each token: for a look at a model, not for serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from jaxpar.data import prompt
from jaxpar.mesh.axes import DATA_AXES, vary
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.parameters import Tree
from jaxpar.model.decoder import Batch
from jaxpar.pipeline.executor import evaluate
from jaxpar.training.batches import row_order
from jaxpar.training.pipeline import forward_program
from jaxpar.training.step import TrainStep

if TYPE_CHECKING:
    from jaxpar.training.trainer import Trainer

LEAST = -1e30
"""Stands for the logit of a column that only pads the vocabulary, which is minus infinity: sums need it finite."""


def next_token_logits(step: TrainStep) -> Any:
    """Compiled (master, batch [1, row, seq], position) -> logits [vocabulary] after that slot of the first row."""

    def function(master: Tree, batch: Batch, position: jax.Array) -> jax.Array:
        stages = step.stages(train=False)
        weights = step.stored_weights(master)
        sinks = step.sinks(weights)

        def pick(x: jax.Array, row: Batch) -> jax.Array:
            logits = stages.logits(weights, sinks, x)[0]
            here = (row["slots"][0] == position) & _holds_first_row()
            return jnp.where(here[:, None], jnp.maximum(logits, LEAST), 0.0).sum(axis=0)

        picked = evaluate(forward_program(step.plan, 1), stages, weights, batch, pick)
        return reduce_sum(vary(picked), (*DATA_AXES, "context", *pipe))

    pipe = () if "pipe" in step.stages(train=False).vocab_axes else ("pipe",)
    layouts = step.master_layout, step.batch_layout(), PartitionSpec()
    vocabulary = PartitionSpec("tensor" if pipe else ("pipe", "tensor"))
    return jax.jit(step.shard_map(function, layouts, vocabulary))


def _holds_first_row() -> jax.Array:
    """Whether this rank holds the first rows of the batch."""
    return jnp.stack([lax.axis_index(axis) == 0 for axis in DATA_AXES]).all()


def continue_tokens(trainer: Trainer, start: np.ndarray, tokens: int, temperature: float) -> np.ndarray:
    """`tokens` more tokens after `start`, [tokens]; ends early at the end of the document.

    The window is the model's sequence length: of a longer text the last part is seen. Temperature 0 takes the likeliest
    token; otherwise the draw is seeded by `run.seed`, and alike on all processes.
    """
    step, length = trainer.functions, trainer.config.data.sequence_length
    logits_after, put = next_token_logits(step), step.shardings(step.batch_layout())
    rows, order = trainer.plan.axes.data, row_order(trainer.plan, length)
    draw = np.random.default_rng(trainer.config.run.seed)
    text = [int(token) for token in start]
    for _ in range(tokens):
        window = text[-length:]
        row = np.zeros(length, np.int32)
        row[: len(window)] = window
        slots = np.arange(length, dtype=np.int32)
        arrays = dict.fromkeys(("tokens", "labels"), row) | dict.fromkeys(("positions", "slots"), slots)
        arrays |= {"segments": np.ones(length, np.int32), "mask": np.zeros(length, np.float32)}
        batch = {name: np.broadcast_to(array[order], (1, rows, length)) for name, array in arrays.items()}
        batch["examples"] = np.zeros((1, rows), np.int32)
        placed = {
            name: jax.make_array_from_callback(batch[name].shape, put[name], lambda index, a=batch[name]: a[index])
            for name in put
        }
        logits = multihost_utils.process_allgather(
            logits_after(trainer.evaluated_weights, placed, len(window) - 1), tiled=True
        )
        token = _draw(np.asarray(logits, np.float64), temperature, draw)
        if token == trainer.data.separator:
            break
        text.append(token)
    return np.array(text[len(start) :], np.int32)


def _draw(logits: np.ndarray, temperature: float, generator: np.random.Generator) -> int:
    if temperature == 0.0:
        return int(np.argmax(logits))
    scaled = (logits - logits.max()) / temperature
    probabilities = np.exp(scaled)
    return int(generator.choice(len(logits), p=probabilities / probabilities.sum()))


def sample_heldout(trainer: Trainer) -> tuple[str, str]:
    """A held-out document's beginning and how the model goes on, as text; token ids where the source has no text."""
    assert trainer.data.heldout is not None, "a sample continues a held-out document"
    evaluation = trainer.config.evaluation
    start = prompt(trainer.data.heldout.stream, trainer.config.data.sequence_length // 2)
    more = continue_tokens(trainer, start, evaluation.sample_tokens, evaluation.sample_temperature)
    decode = trainer.data.decode or (lambda tokens: " ".join(str(token) for token in tokens))
    return decode(start), decode(more)
