"""Checkpoints and other files that a run's folder lacks, fetched from the run's mirror."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jaxpar.checkpoint.digests import file_entries
from jaxpar.checkpoint.errors import Damage
from jaxpar.checkpoint.folders import CHECKPOINTS, listed_steps, step_name
from jaxpar.checkpoint.manifest import MANIFEST, complete_steps, decode, is_sealed
from jaxpar.config import Config, UserError, load_config
from jaxpar.config.paths import RUN_CONFIG
from jaxpar.config.spelling import quoted
from jaxpar.pages.units import size
from jaxpar.remote.store import download, listed, read, run_in_threads, traffic
from jaxpar.remote.upload import MARKER
from jaxpar.training.run_folder.same_run import forbidden_changes

OWNER = ".owner"
"""File of a mirror that names the start of the run that uploads to it."""


def fetch(url: str, folder: Path, config: Config) -> str | None:
    """Copy the newest complete checkpoint of a mirror, and the run's other files, into the run's folder, where that has
    no complete one as new; returns a sentence about it.

    Raises:
        UserError: the store refuses, or has another run there.
        OSError: the folder cannot be written.
    """
    files = listed(url)
    files.pop(OWNER, None)
    if files:
        _check_same_run(url, config)
    steps = complete_steps(files)
    here = [step for step in listed_steps(folder / CHECKPOINTS) if is_sealed(folder, step)]
    if not steps or (here and here[-1] >= steps[-1]):
        return None
    newest, before = f"{CHECKPOINTS}/{step_name(steps[-1])}/", traffic.bytes
    checkpoint = [name for name in files if name.startswith(newest) and not name.endswith((MARKER, MANIFEST))]
    others = [name for name in files if not name.startswith(f"{CHECKPOINTS}/")]
    copy = lambda name: _copy(url, folder, name, files[name].size)
    there = _fetched(url, folder, newest, checkpoint)
    copies = [partial(copy, name) for name in (*others, *checkpoint) if name != RUN_CONFIG and name not in there]
    copy(RUN_CONFIG)  # first: without it the folder would be no run's
    run_in_threads(copies)
    copy(newest + MANIFEST)  # last: without it the checkpoint is not complete
    return (
        f"The checkpoint of step {steps[-1]} was copied from {url} ({size(traffic.bytes - before)}), since the run's "
        "folder had none that is as new."
    )


def _check_same_run(url: str, config: Config) -> None:
    """Refuse a URL with anything but this run: old checkpoints are removed there, as in the folder."""
    text, changes = read(f"{url}/{RUN_CONFIG}"), [f"it has no {RUN_CONFIG}"]
    if text is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, RUN_CONFIG)
            file.write_bytes(text)
            changes = forbidden_changes(load_config(str(file)), config)
    if changes:
        raise UserError(
            f"run.mirror: {quoted(url)} has something else than this run ({'; '.join(changes)}); choose another "
            "run.name or run.mirror"
        )


def _fetched(url: str, folder: Path, newest: str, names: Sequence[str]) -> set[str]:
    """The files of a checkpoint that an earlier fetch copied: they have the digests of its manifest."""
    there = [name.removeprefix(newest) for name in names if (folder / name).is_file()]
    entries = file_entries(folder / newest, there, flush=False) if there else {}
    try:
        files = decode(read(f"{url}/{newest}{MANIFEST}") or b"").files if there else {}
    except Damage:  # the restore reports it
        files = {}
    return {newest + name for name in there if files.get(name) == entries[name]}


def _copy(url: str, folder: Path, name: str, size: int) -> None:
    target = folder / name
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    download(f"{url}/{name}", size, target, part)
