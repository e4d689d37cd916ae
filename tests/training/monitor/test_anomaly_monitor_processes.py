"""Two real processes: one comes late with every batch, a batch is not finite, and a spike takes both back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.run.test_processes import free_port, outputs
from tests.training.runs import MESH, ROOT, folder_of, losses, run_config, write_config


@pytest.mark.long
def test_two_processes_agree_on_what_is_wrong_and_go_back_together(tmp_path: Path):
    config = run_config(
        tmp_path,
        16,
        parallel=MESH,
        run={"log_every": 4},
        watch={"limits": {"spike_window": 10, "spike": 4.0}, "on_spike": "rollback"},
        checkpoint={"every": 12},
    )
    write_config(config, file := tmp_path / "run.yaml")
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    job = ["--config", str(file)]
    for setting in (f"coordinator=127.0.0.1:{free_port()}", "processes=2"):
        job += ["--set", f"distributed.{setting}"]
    command = [sys.executable, "-m", "tests.training.odd_loader"]
    started = [
        subprocess.Popen(
            [*command, seconds, "5", "14", *job, "--set", f"distributed.process_id={rank}"],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": " ".join([*flags, "--xla_force_host_platform_device_count=4"])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, seconds in enumerate(("0", "0.5"))
    ]
    done = outputs(started)
    assert [code for code, _, _ in done] == [0, 0], done
    lines = map(json.loads, (folder_of(config) / "events.jsonl").read_text().splitlines())
    found = {line["kind"]: line for line in lines if line["event"] == "anomaly"}
    assert found["not_finite"]["step"] == 5
    assert found["not_finite"]["gradients"]["layers/all/mlp/down"] == [1, 2, 3]
    late = found["straggler"]
    assert late["process"] == 1
    assert late["share"] > 0.2  # Half of each step.
    assert late["batch_seconds"] > 0.7 * late["seconds"]
    assert f"! Process 1 on {late['host']} holds up the job" in done[0][1]
    spike = found["loss_spike"]
    assert (spike["step"], spike["rolled_back_to"], spike["left_out"]) == (14, 12, [12, 13])
    assert list(losses(config))[-2:] == [12, 16]
    assert losses(config)[16] < 3.5
    assert not any("holds up" in line for line in done[1][1].splitlines()), "only the first one speaks"
