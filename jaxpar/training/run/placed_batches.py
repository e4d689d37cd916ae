"""The batches of a run on its devices, one placed ahead of the step that uses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import jax

from jaxpar.config import Config
from jaxpar.data import Data, batches
from jaxpar.layout.stages import mask_of
from jaxpar.model.flops import Pairs, windows
from jaxpar.runtime.batch import BatchPlacer
from jaxpar.training.field_folder import FieldFolder
from pallas_kernels.masks import visible_pairs


def placed_batches(
    config: Config, data: Data, placer: BatchPlacer, first_step: int, left_out: Sequence[int] = ()
) -> Iterator[tuple[dict[str, jax.Array], Pairs]]:
    """Batches on the devices, one placed ahead, with the pairs that the mask keeps in them.

    Args:
        config: of the run.
        data: its training rows; those of pairs have the values of the reference.
        placer: places the rows that this process loads.
        first_step: steps before the first batch.
        left_out: numbers of batches that no step uses, ascending.
    """
    settings, mask = config.data, mask_of(config, config.model)
    masks = {window: replace(mask, window=window) for window in windows(config.model)}
    share = settings.batch_size / len(placer.rows)
    source = batches(
        data.train,
        batch_size=settings.batch_size,
        rows=placer.rows,
        first_step=first_step,
        left_out=left_out,
        prefetch=settings.prefetch,
    )
    ready = None
    folders = [FieldFolder(getattr(settings, one.name), one) for one in placer.batch.fields if one.optional]
    for step, rows in enumerate(source, first_step):
        if folders and step >= config.run.steps:  # Files end with the run's steps.
            break
        for folder in folders:
            read = folder.read(rows["examples"], settings.batch_size, settings.sequence_length)
            rows = rows | {folder.field.name: read}
        pairs = {window: round(share * visible_pairs(own, rows["segments"])) for window, own in masks.items()}
        following = placer(rows), pairs
        if ready is not None:
            yield ready
        ready = following
    if ready is not None:
        yield ready
