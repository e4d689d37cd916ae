"""What XLA:CPU's client has when several virtual devices stand in for GPUs. In processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jaxpar.hardware.virtual_devices import THREADS_VARIABLE, threads_for
from tests.training.runs import ROOT

COUNTED = """
import jax
from pathlib import Path
from jaxpar.config import DistributedConfig
from jaxpar.distributed.devices import prepare_devices

prepare_devices(4, DistributedConfig())
jax.block_until_ready(jax.numpy.ones(2) + 1)
print(len(jax.devices()), sum("XLAEigen" in (task / "comm").read_text() for task in Path("/proc/self/task").iterdir()))
"""


@pytest.mark.parametrize(("own", "threads"), [(None, threads_for(4)), ("5", 5)], ids=["ours", "the user's"])
def test_collectives_that_wait_leave_threads_for_those_that_they_wait_for(own: str | None, threads: int):
    """With one thread a device, a pipeline with branches stops for ever: each waits, and none is left to arrive."""
    variables = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", THREADS_VARIABLE)}
    asked = {} if own is None else {THREADS_VARIABLE: own}
    command = [sys.executable, "-c", COUNTED]
    done = subprocess.run(command, env=variables | asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [int(word) for word in done.stdout.split()] == [4, max(threads, 4)]
