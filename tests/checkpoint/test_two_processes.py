"""Two processes of one job, one folder: they agree, share the work, and one process can go on from there."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.states import host_state, like, mesh_of
from tests.same_bits import assert_same_bits


@pytest.mark.long
def test_two_processes_save_and_one_process_restores(tmp_path, checkpointer, reports):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-m", "tests.checkpoint.two_processes"]
    processes = [
        subprocess.Popen(
            [*command, str(index), str(port), str(tmp_path)],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n\n".join(outputs)

    checkpoints = checkpointer(tmp_path)
    assert checkpoints.latest() == 3
    assert reports[0].startswith(f"checkpoint {tmp_path}/00000004 is skipped, because facts.json")
    for mesh in (mesh_of(fsdp=8), mesh_of(tensor=1)):
        assert_same_bits(checkpoints.restore(3, like(host_state(3), mesh)), host_state(3))
