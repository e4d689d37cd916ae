"""A run within its mirror (`run.mirror`): fetched before the run looks into its folder, complete after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from jaxpar.checkpoint.processes import from_first
from jaxpar.config import Config
from jaxpar.config.urls import store_url
from jaxpar.distributed import liveness
from jaxpar.observe.events import Listener
from jaxpar.training.errors import TrainingError
from jaxpar.training.run_folder.mirror import Mirror, Share
from jaxpar.training.run_folder.mirror_fetch import fetch


def mirror_of(config: Config, folder: Path) -> Mirror | None:
    """The mirror of a run's folder; None without `run.mirror`."""
    if config.run.mirror is None:
        return None
    url = store_url("run.mirror", config.run.mirror, written=True)
    return Mirror(f"{url}/{config.run.name}", folder, config, Share(jax.process_index(), jax.process_count()))


@contextmanager
def mirrored(mirror: Mirror, listeners: Listener) -> Iterator[None]:
    """Fetch what the run's folder lacks, upload during the block, and the rest after it, also where it fails.

    Raises:
        TrainingError: something could not be uploaded.
        UserError: the store refuses, or has another run there.
    """
    liveness.at("looking into run.mirror")
    fetched = from_first(lambda: fetch(mirror.url, mirror.folder, mirror.config))
    if fetched is not None:
        listeners.message(fetched)
    mirror.begin()
    try:
        yield
    except Exception:
        mirror.finish()
        _tell(mirror, listeners)
        raise
    liveness.at("waiting for uploads")
    failure = from_first(mirror.finish)
    if mirror.share.index:
        mirror.finish()
    _tell(mirror, listeners)
    if failure is not None:
        raise TrainingError(failure)


def _tell(mirror: Mirror, listeners: Listener) -> None:
    for note in mirror.notes():
        listeners.message(note)
