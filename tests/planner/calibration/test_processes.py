"""`calibrate` in several processes: groups across them are measured, and the first of them writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpar.config.reading.yaml_file import read_record
from jaxpar.planner.profile import Profile
from tests.patience import seconds
from tests.training.run.test_processes import free_port


@pytest.mark.long
def test_two_processes_measure_together_and_one_writes(tmp_path: Path):
    """Two processes of two devices on one machine, which is one host."""
    port = free_port()
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.planner.calibration.measure"]
    job = [f"distributed.coordinator=127.0.0.1:{port}", "distributed.processes=2"]
    processes = [
        subprocess.Popen(
            [*command, str(tmp_path / f"{rank}.yaml"), *job, f"distributed.process_id={rank}"],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    out = [process.communicate(timeout=seconds(240))[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], out
    assert [file.name for file in tmp_path.iterdir()] == ["0.yaml"]
    assert "Wrote" in out[0] and "Wrote" not in out[1]
    profile, _ = read_record(Profile, tmp_path / "0.yaml")
    assert (profile.devices, profile.processes) == (4, 2)
    assert {(one.ranks, one.hosts) for one in profile.collectives} == {(2, 1), (4, 1)}
    assert profile.could_not_measure[0].startswith("messages between hosts: all devices are in one host")
