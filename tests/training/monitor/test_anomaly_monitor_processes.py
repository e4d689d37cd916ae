"""Two real processes: one comes late with every batch, a batch is not finite, and a spike takes both back."""

import json
from pathlib import Path

import pytest

from tests.training.run.test_processes import outputs, start_job
from tests.training.runs import MESH, folder_of, losses, run_config


@pytest.mark.long
def test_two_processes_agree_on_what_is_wrong_and_go_back_together(tmp_path: Path):
    watch = {"limits": {"spike_window": 10, "spike": 4.0}, "on_spike": "rollback"}
    config = run_config(tmp_path, 16, parallel=MESH, run={"log_every": 4}, watch=watch, checkpoint={"every": 12})
    done = outputs(start_job(config, tmp_path / "run.yaml", 2, program="tests.training.odd_loader"))
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
