"""The sample at the end of a run. Under a pipeline each token runs the whole window again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec
from jax.stages import Wrapped

from jaxpar.config.axes import TOKEN_AXES
from jaxpar.data import prompt
from jaxpar.generation.generator import Generator
from jaxpar.generation.sampling import NotFinite, Sampling
from jaxpar.layers.inputs.input import refuse_without_batches
from jaxpar.layout.choices.pipeline import forward_program
from jaxpar.layout.stages import stages_of
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import DATA_AXES, vary
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.model.head import vocab_axes
from jaxpar.pipeline.execution.executor import evaluate
from jaxpar.runtime.batch import FORWARD, BatchLayout, one_document_rows
from jaxpar.training.run.run import Run
from jaxpar.training.step.train_step import TrainStep

LEAST = -1e30
"""Replaces the logit of minus infinity of a column that only pads the vocabulary: sums need it finite."""

TEMPERATURE = 0.7
"""Temperature of the sample at the end of a run."""


def next_token_logits(step: TrainStep) -> Wrapped:
    """Compiled (weights, batch [1, row, seq], position) -> logits [vocabulary] after that index of the first row.

    The batch has what a forward reads.
    """

    def function(weights: Weights, batch: Batch, position: jax.Array) -> jax.Array:
        stages = stages_of(step.layout, train=False)
        weights, accumulators = step.residency.opened(weights)

        def pick(x: jax.Array, row: Batch) -> jax.Array:
            logits = stages.logits(weights, accumulators, x)[0]
            here = (row["indices"][0] == position) & _holds_first_row()
            return jnp.where(here[:, None], jnp.maximum(logits, LEAST), 0.0).sum(axis=0)

        picked = evaluate(forward_program(step.layout.plan, 1), stages, weights, batch, pick)
        return reduce_sum(vary(picked), (*TOKEN_AXES, *pipe))

    pipe = () if "pipe" in vocab_axes(step.layout.placements) else ("pipe",)
    layouts = step.layout.weights, _windows(step.layout).partitions, PartitionSpec()
    vocabulary = PartitionSpec("tensor" if pipe else ("pipe", "tensor"))
    return step.compiled(function, layouts, vocabulary)


def _windows(layout: StepLayout) -> BatchLayout:
    """The batch of a forward: a row for each part of the mesh that has rows of its own."""
    shape = 1, layout.plan.axes.data, layout.config.data.sequence_length
    return BatchLayout(FORWARD, shape, layout.batch.order)


def _holds_first_row() -> jax.Array:
    """Whether this rank holds the first rows of the batch."""
    return jnp.stack([lax.axis_index(axis) == 0 for axis in DATA_AXES]).all()


def continue_tokens(trainer: Run, start: np.ndarray, tokens: int, temperature: float) -> np.ndarray:
    """Up to `tokens` tokens after `start`, [tokens]; ends early at the end of the document.

    No token sees more than the model's sequence length before it. Temperature 0 takes the likeliest token; otherwise
    the draw is seeded by `run.seed`, and is the same on all processes.
    """
    refuse_without_batches(trainer.config.model, "a sample")
    if trainer.plan.axes.pipe > 1:
        return _by_windows(trainer, start, tokens, temperature)
    config, length = trainer.config, trainer.config.data.sequence_length
    sampling, weights = Sampling(temperature=temperature), trainer.evaluated_weights()
    stop = [] if trainer.data.separator is None else [trainer.data.separator]
    generator = Generator(
        config, trainer.mesh, weights, sampling=sampling, zero=config.parallel.zero, seed=config.run.seed
    )
    text, ended = [int(token) for token in start], False
    while not ended and len(text) < len(start) + tokens:
        # A row that is full goes on from its second half.
        window = text if len(text) < length else text[-max(1, length // 2) :]
        room = min(length - len(window), len(start) + tokens - len(text))
        (more,) = generator.continued([window], room, stop=stop, first_number=len(text))
        text, ended = [*text, *more.tokens.tolist()], more.ended
    return np.array(text[len(start) :], np.int32)


def _by_windows(trainer: Run, start: np.ndarray, tokens: int, temperature: float) -> np.ndarray:
    """`continue_tokens` by the forward of a pipeline, which has no cache."""
    step, length = trainer.functions, trainer.config.data.sequence_length
    logits_after, batch = next_token_logits(step), _windows(step.layout)
    rows = batch.shape[1]
    draw = np.random.default_rng(trainer.config.run.seed)
    text, weights = [int(token) for token in start], trainer.evaluated_weights()
    for _ in range(tokens):
        window = text[-length:]
        ids = np.zeros((rows, length), np.int32)
        ids[:, : len(window)] = window
        placed = batch.place(step.mesh, one_document_rows(ids))
        logits = logits_after(weights, placed, len(window) - 1)
        logits = multihost_utils.process_allgather(logits, tiled=True)
        if not np.isfinite(logits).all():
            raise NotFinite
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


def sample_heldout(trainer: Run) -> tuple[str, str]:
    """The beginning of a held-out document and the model's continuation, as text; token ids where there is no text."""
    assert trainer.data.heldout is not None, "a sample continues a held-out document"
    evaluation = trainer.config.evaluation
    start = prompt(trainer.data.heldout.stream, trainer.config.data.sequence_length // 2)
    more = continue_tokens(trainer, start, evaluation.sample_tokens, TEMPERATURE)
    decode = trainer.data.decode or (lambda tokens: " ".join(str(token) for token in tokens))
    return decode(start), decode(more)
