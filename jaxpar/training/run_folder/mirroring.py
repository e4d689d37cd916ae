"""A run within its mirror (`run.mirror`): fetched once its folder is locked, complete after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax

from jaxpar.checkpoint.processes import run_on_process_0
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


def fetching(mirror: Mirror) -> Callable[[], str | None]:
    """The function that fetches what the run's folder lacks (`fetch`)."""
    return partial(fetch, mirror.url, mirror.folder, mirror.config)


@contextmanager
def mirrored(mirror: Mirror, listeners: Listener) -> Iterator[None]:
    """Upload during the block, and the rest after it, also where it fails. The run has locked its folder.

    Raises:
        TrainingError: something could not be uploaded.
    """
    mirror.begin()
    try:
        yield
    except Exception:
        failure = mirror.finish()
        _tell(mirror, listeners)
        if failure is not None:
            listeners.message(f"{failure[0].upper()}{failure[1:]}.")
        raise
    liveness.report_activity("waiting for uploads")
    failure = run_on_process_0(mirror.finish)
    if mirror.share.index:
        mirror.finish()
    _tell(mirror, listeners)
    if failure is not None:
        raise TrainingError(failure)


def _tell(mirror: Mirror, listeners: Listener) -> None:
    for note in mirror.notes():
        listeners.message(note)
