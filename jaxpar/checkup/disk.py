"""Checks the folder of runs: whether it can be written, its speed and free space, and whether processes share it."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import jax

from jaxpar.checkpoint.processes import gather, run_on_process_0
from jaxpar.checkup.finding import Finding
from jaxpar.config import Config
from jaxpar.layers.counting import parameter_count
from jaxpar.pages.units import MEGA, MIB, rate, size

TRIED_BYTES = 64 * MIB
BYTES_PER_WEIGHT = 12
"""Master weights and both moments in float32."""
SLOW_BYTES_PER_S = 50 * MEGA


def check_disk(config: Config, process: int) -> Iterator[Finding]:
    """Findings about `run.dir`, or its nearest existing parent folder; no file is left in it.

    Args:
        config: with `run.dir`, the model that checkpoints hold, and how many are kept.
        process: index of this one.
    """
    folder = _existing(Path(config.run.dir).expanduser())
    try:
        with tempfile.TemporaryDirectory(prefix=".jaxpar-doctor-", dir=folder) as trial:
            write_s, read_s = _measure_file(Path(trial) / "trial")
    except OSError as error:
        run_on_process_0(str)  # the other processes still check for a shared folder
        gather("")
        yield Finding("run.dir", "fail", f"{folder} cannot be written ({error.strerror})", "choose another run.dir")
        return
    speeds = f"{rate(TRIED_BYTES / write_s)} written and flushed, {rate(TRIED_BYTES / read_s)} read"
    slow = TRIED_BYTES / write_s < SLOW_BYTES_PER_S
    yield Finding(
        "run.dir", "warn" if slow else "ok", f"{folder}: {speeds}",
        "checkpoints will take long: choose a faster file system for run.dir" if slow else "",
    )  # fmt: skip
    yield from _shared(folder, process)
    yield _room(folder, config)


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _measure_file(file: Path) -> tuple[float, float]:
    """Seconds to write and to read a file of random bytes. Raises `OSError` if the bytes read are different."""
    data = secrets.token_bytes(MIB)
    digest = hashlib.blake2b()
    began = time.perf_counter()
    with open(file, "wb") as out:
        for _ in range(TRIED_BYTES // len(data)):
            out.write(data)
            digest.update(data)
        out.flush()
        os.fsync(out.fileno())
        if hasattr(os, "posix_fadvise"):  # read from the disk, and not from memory
            os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    written = time.perf_counter()
    hasher = hashlib.blake2b()
    with open(file, "rb", buffering=0) as back:
        while piece := back.read(MIB):
            hasher.update(piece)
    read = time.perf_counter()
    if hasher.digest() != digest.digest():
        raise OSError(0, "what was read is not what was written")
    return written - began, read - written


def _shared(folder: Path, process: int) -> Iterator[Finding]:
    """Process 0 makes a file, and the others look for it."""
    if jax.process_count() == 1:
        return
    token = folder / f".jaxpar-doctor-{secrets.token_hex(8)}"
    if process == 0:
        token.touch()
    try:
        told = run_on_process_0(lambda: str(token))
        seen = bool(told) and (Path(told).exists() or (folder / Path(told).name).exists())
        gather("")
    finally:
        if process == 0:
            with suppress(FileNotFoundError):
                token.unlink()
    if seen:
        yield Finding("shared folder", "ok", f"every process sees what process 0 writes in {folder}")
    elif told:
        yield Finding(
            "shared folder", "fail", f"{folder} is not the folder that process 0 writes to",
            "put run.dir on a file system that all hosts share: checkpoints are written by all of them into one folder",
        )  # fmt: skip


def _room(folder: Path, config: Config) -> Finding:
    model = config.model if config.model.vocab is not None else replace(config.model, vocab=256)
    each = parameter_count(model, padded=True) * BYTES_PER_WEIGHT
    wanted, free = each * (config.checkpoint.keep_last + 1), shutil.disk_usage(folder).free
    text = (
        f"{size(free)} free; a checkpoint takes about {size(each)}, and checkpoint.keep_last "
        f"({config.checkpoint.keep_last}) and the one being written {size(wanted)}"
    )
    if free >= wanted:
        return Finding("room", "ok", text)
    mend = "free space, choose another run.dir, or lower checkpoint.keep_last"
    return Finding("room", "fail" if free < each else "warn", text, mend)
