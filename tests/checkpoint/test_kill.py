"""kill -9 in the middle of a save: the last complete checkpoint is always found, and saving goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from jaxpar.checkpoint import Checkpointer
from tests.checkpoint.save_until_killed import state_of
from tests.checkpoint.states import like, mesh_of, put
from tests.same_bits import assert_same_bits

MOMENTS = [("before", 0.02), ("after", 0.0), ("after", 0.1)]
"""When a process speaks (see `save_until_killed`), and how long after that it is killed, in seconds."""


def test_a_killed_save_leaves_a_usable_checkpoint(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-m", "tests.checkpoint.save_until_killed", str(tmp_path), *(when for when, _ in MOMENTS)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        for _, delay in MOMENTS:
            saver = int(parent.stdout.readline())
            time.sleep(delay)
            os.kill(saver, signal.SIGKILL)
    assert parent.returncode == 0
    mesh = mesh_of(fsdp=2, tensor=4)
    found = []
    for index in range(len(MOMENTS)):
        reports: list[str] = []
        checkpoints = Checkpointer(tmp_path / str(index), keep_last=2, keep_every=None, report=reports.append)
        step = checkpoints.latest()
        assert step in (1, 2), reports
        assert checkpoints.facts(step) == {"step": step}
        assert_same_bits(checkpoints.restore(step, like(state_of(step), mesh)), state_of(step))
        if step == 1:
            checkpoints.save(2, put(state_of(2), mesh), {"step": 2})
            assert checkpoints.latest() == 2
        checkpoints.close()
        found.append(step)
    assert 1 in found, "no kill came before the end of a save: the test has lost its meaning"
