"""Bytes that a save and a restart read, by the kernel's counters. `jaxpar.plan budget` reckons with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoint.states import like, mesh_of, put
from tests.same_bits import assert_same_bits

STATE = {"a": np.arange(5 * 2**20, dtype=np.float32).reshape(8, -1), "step": np.int32(7)}
BYTES = sum(value.nbytes for value in STATE.values())


def times_read(work: Callable[[], Any]) -> float:
    """Bytes that this process has read, divided by those of the state."""
    read = lambda: int(Path("/proc/self/io").read_text().split()[1])
    before = read()
    work()
    return (read() - before) / BYTES


def test_a_save_reads_back_what_it_wrote_and_a_restart_reads_each_byte_twice(checkpointer):
    mesh = mesh_of(fsdp=4, tensor=2)
    checkpoints, state, restored = checkpointer(), put(STATE, mesh), []
    checkpoints.save(1, state, {})  # The first one also reads the code of libraries.
    checkpoints.wait()
    assert 1 <= times_read(lambda: (checkpoints.save(2, state, {}), checkpoints.wait())) < 1.01
    restart = lambda: restored.append(checkpoints.restore(checkpoints.latest(), like(STATE, mesh)))
    assert 2 <= times_read(restart) < 2.01
    assert_same_bits(restored[0], STATE)
