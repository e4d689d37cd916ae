"""Two real processes, of which one comes late with every batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.runs import MESH, ROOT, folder_of, run_config, write_config
from tests.training.test_processes import free_port, outputs


@pytest.mark.long
def test_the_process_that_the_others_wait_for_is_named(tmp_path: Path):
    config = run_config(tmp_path, 13, parallel=MESH, run={"log_every": 4})
    write_config(config, file := tmp_path / "run.yaml")
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    job = ["--config", str(file)]
    for setting in (f"coordinator=127.0.0.1:{free_port()}", "processes=2"):
        job += ["--set", f"distributed.{setting}"]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.training.slow_loader",
                delay,
                *job,
                "--set",
                f"distributed.process_id={rank}",
            ],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": " ".join([*flags, "--xla_force_host_platform_device_count=4"])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, delay in enumerate(("0", "0.5"))
    ]
    done = outputs(started)
    assert [code for code, _, _ in done] == [0, 0], done
    lines = map(json.loads, (folder_of(config) / "events.jsonl").read_text().splitlines())
    (anomaly,) = [line for line in lines if line["event"] == "anomaly"]
    assert (anomaly["kind"], anomaly["process"]) == ("straggler", 1)
    assert anomaly["share"] > 0.5
    assert anomaly["batch_seconds"] > 0.9 * anomaly["seconds"]
    assert "! Process 1 on " in done[0][1]
