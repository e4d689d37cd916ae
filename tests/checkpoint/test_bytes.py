"""Bytes that a save and a restart read, by the kernel's counters. `jaxpar.plan budget` reckons with them."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoint.states import like, mesh_of, put
from tests.same_bits import assert_same_bits

STATE = {"a": np.arange(5 * 2**20, dtype=np.float32).reshape(8, -1), "step": np.int32(7)}
BYTES = sum(value.nbytes for value in STATE.values())


def times_read(work: Callable[[], Any], counter: str = "rchar") -> float:
    """Bytes that this process has read, divided by those of the state: by the program, or from the disk."""
    read = lambda: int(re.findall(rf"^{counter}: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)[0])
    before = read()
    work()
    return (read() - before) / BYTES


def forget(folder: Path) -> None:
    """Have the system drop the files from memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_restart_reads_each_byte_from_the_disk_once_and_a_save_none(checkpointer):
    mesh = mesh_of(fsdp=4, tensor=2)
    checkpoints, state, restored = checkpointer(), put(STATE, mesh), []
    save = lambda step: (checkpoints.save(step, state, {}), checkpoints.wait())
    restart = lambda: restored.append(checkpoints.restore(checkpoints.latest(), like(STATE, mesh)))
    save(1)  # The first one also reads the code of libraries.
    assert 1 <= times_read(lambda: save(2)) < 1.01
    assert times_read(lambda: save(3), "read_bytes") < 0.01
    assert 2 <= times_read(restart) < 2.01, "to verify them, and to restore them"
    forget(checkpoints.folder)
    from_disk = times_read(restart, "read_bytes")
    system = subprocess.check_output(["stat", "--file-system", "--format=%T", checkpoints.folder], text=True).strip()
    assert from_disk < 0.01 if system == "tmpfs" else 0.95 <= from_disk < 1.1, system
    assert_same_bits(restored[-1], STATE)
