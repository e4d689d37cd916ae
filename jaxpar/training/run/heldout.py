"""The held-out batches of a run, and the losses over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from jaxpar.config import Config, UserError
from jaxpar.config.parts import OBJECTIVES
from jaxpar.data import Data, batch_rows, bigram_loss
from jaxpar.data.baseline import NOTHING_COUNTED
from jaxpar.mesh.parameters import Weights
from jaxpar.runtime.batch import BatchPlacer
from jaxpar.training.step.train_step import TrainStep


def evaluates(config: Config, data: Data) -> bool:
    """Whether there is held-out data and the configuration asks to use it."""
    return data.heldout is not None and config.evaluation.batches > 0


def heldout_batches(config: Config, data: Data, rows: Sequence[int] | np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """`rows` of each held-out batch; they are always the same batches, and those of pairs need their reference."""
    assert data.heldout is not None, "there is held-out data"
    for index in range(config.evaluation.batches):
        yield batch_rows(data.heldout, index, config.data.batch_size, rows)


def heldout_metrics(
    config: Config, functions: TrainStep, weights: Weights, data: Data, placer: BatchPlacer
) -> dict[str, float]:
    """The loss over the held-out batches, and its metrics: in nats per token, or per pair.

    Raises `UserError` when they have nothing that the loss counts.
    """
    totals, count = Counter[str](), 0.0
    for rows in heldout_batches(config, data, placer.rows):
        sums, counted = functions.evaluate(weights, placer(rows, functions.layout.evaluated))
        totals.update({name: float(total) for name, total in sums.items()})
        count += float(counted)
    if not count:
        raise UserError(NOTHING_COUNTED)
    return {name: total / count for name, total in totals.items()}


def baseline(config: Config, data: Data) -> float | None:
    """Loss of a bigram model on the held-out batches, in nats per token; None where nothing compares with it."""
    if not evaluates(config, data) or not OBJECTIVES[config.loss.name].likelihood:
        return None
    rows = range(config.data.batch_size)
    return bigram_loss(data.train.stream, heldout_batches(config, data, rows), data.vocab)
