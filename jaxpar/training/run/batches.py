"""The batches of a run on its devices: those of training, placed one ahead, and validation ones with their losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import jax
import numpy as np

from jaxpar.config import Config, UserError
from jaxpar.config.parts import OBJECTIVES
from jaxpar.config.ramp import examples_before, stretch_of
from jaxpar.data import Data, batch_index, batch_rows, batches, bigram_loss
from jaxpar.data.baseline import NO_LOSS_TOKENS
from jaxpar.mesh.parameters import Weights
from jaxpar.model.flops import Pairs, seen_pairs
from jaxpar.runtime.batch import BatchPlacer
from jaxpar.training.field_folder import FieldFolder
from jaxpar.training.step.train_step import TrainStep


def placed_batches(
    config: Config, data: Data, placers: Mapping[int, BatchPlacer], first_step: int, left_out: Sequence[int] = ()
) -> Iterator[tuple[dict[str, jax.Array], Pairs]]:
    """Batches on the devices, one placed ahead, with the pairs that the mask keeps in them.

    Args:
        config: of the run.
        data: its training rows; those of pairs have the values of the reference.
        placers: place the rows that this process loads, by the rows of a batch.
        first_step: steps before the first batch.
        left_out: numbers of batches that no step uses, ascending.
    """
    settings = config.data
    placer = placers[settings.batch_size]
    source = batches(
        data.train,
        batch=lambda index: (examples_before(settings, index), placers[stretch_of(settings, index).rows].rows),
        first_step=first_step,
        left_out=left_out,
        prefetch=settings.prefetch,
    )
    ready = None
    folders = [FieldFolder(getattr(settings, one.name), one) for one in placer.batch.fields if one.optional]
    for step in count(first_step):
        if (folders or data.examples is not None) and step >= config.run.steps:  # Both may end with the run's steps.
            break
        rows = next(source)
        for folder in folders:
            read = folder.read(rows["examples"], settings.batch_size, settings.sequence_length)
            rows = rows | {folder.field.name: read}
        stretch = stretch_of(settings, batch_index(step, left_out))
        placer = placers[stretch.rows]
        share = stretch.rows / len(placer.rows)
        pairs = seen_pairs(config.model, rows, packed=settings.packed)
        following = placer(rows), {limit: round(share * one) for limit, one in pairs.items()}
        if ready is not None:
            yield ready
        ready = following
    if ready is not None:
        yield ready


def evaluates(config: Config, data: Data) -> bool:
    """Whether there is validation data and the configuration asks to use it."""
    return data.validation is not None and config.evaluation.batches > 0


def validation_batches(
    config: Config, data: Data, rows: Sequence[int] | np.ndarray
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """`rows` of each validation batch, with the name of its set; they are always the same batches, and those of pairs
    need their reference."""
    for name, source in data.evaluated.items():
        for index in range(config.evaluation.batches):
            yield name, batch_rows(source, index, config.data.batch_size, rows)


def validation_metrics(
    config: Config, functions: TrainStep, weights: Weights, data: Data, placer: BatchPlacer
) -> dict[str, float]:
    """The loss over the validation batches, and its metrics: in nats per token, or per pair; and that of each set that
    has a name, as `loss_<name>`.

    Raises `UserError` when they have nothing that the loss counts.
    """
    totals, count = Counter[str](), 0.0
    losses, targets = Counter[str](), Counter[str]()
    for name, rows in validation_batches(config, data, placer.rows):
        sums, counted = functions.evaluate(weights, placer(rows, functions.layout.evaluated))
        totals.update({metric: float(total) for metric, total in sums.items()})
        count += float(counted)
        losses.update({name: float(sums["loss"])})
        targets.update({name: float(counted)})
    if not count:
        raise UserError(NO_LOSS_TOKENS)
    of_sets = {f"loss_{name}": losses[name] / size for name, size in targets.items() if name and size}
    return {name: total / count for name, total in totals.items()} | of_sets


def baseline(config: Config, data: Data) -> float | None:
    """Loss of a bigram model on the validation batches, in nats per token; None where nothing compares with it."""
    if not evaluates(config, data) or not OBJECTIVES[config.loss.name].likelihood:
        return None
    rows = range(config.data.batch_size)
    batches = (batch for _, batch in validation_batches(config, data, rows))
    return bigram_loss(data.train.stream, batches, data.vocab)
