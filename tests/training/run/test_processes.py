"""Several real processes of one job: the numbers of a single process, one set of files, a sentence for a straggler."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from jaxpar.checkpoint.manifest import MANIFEST
from jaxpar.config import Config
from tests.data.folders import texts, write_jsonl, write_tokenizer
from tests.patience import seconds
from tests.same_bits import assert_same_bits
from tests.sentences import refused_by_command
from tests.training.runs import MESH, fit, folder_of, losses, run_config, saved_state, start, write_config

PATIENCE_S = seconds(240)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_job(config: Config, file: Path, count: int, **how: Any) -> list[subprocess.Popen[str]]:
    """Start the processes of a job, with `how` for each; each has its share of eight devices."""
    write_config(config, file)
    job = [f"distributed.coordinator=127.0.0.1:{free_port()}", f"distributed.processes={count}"]
    how["environment"] = {"PYTHONFAULTHANDLER": "1", **how.get("environment", {})}
    return [start(file, *job, f"distributed.process_id={rank}", devices=8 // count, **how) for rank in range(count)]


def outputs(job: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each process; one that does not end says where its threads are."""
    deadline, stuck = time.monotonic() + PATIENCE_S, list[int]()
    texts: list[tuple[str, str]] = []
    for rank, process in enumerate(job):
        try:
            texts.append(process.communicate(timeout=max(1.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            stuck.append(rank)
            process.send_signal(signal.SIGABRT)  # `PYTHONFAULTHANDLER` has it print every thread's stack.
            texts.append(process.communicate())
    done = [(process.returncode, *text) for process, text in zip(job, texts, strict=True)]
    assert not stuck, f"still running after {PATIENCE_S:.0f} s: processes {stuck}; {done}"
    return done


JOBS: dict[str, dict[str, Any]] = {
    "a mesh": {"parallel": MESH, "checkpoint": {"every": 2}},
    "a stream": {"parallel": MESH, "model": {"vocab": None}},
    "an island each": {
        "parallel": {"islands": 2, "fsdp": 2, "tensor": 2}, "islands": {"every": 2, "delay": 1},
        "checkpoint": {"every": 3},
    },
    "state in files of one folder": {"parallel": MESH, "memory": {"optimizer_offload": "file"}},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", JOBS)
def test_two_processes_train_as_one(tmp_path: Path, name: str):
    """Then one process goes on. With files a second job does so before, with processes of one id, as in containers."""
    sections: dict[str, Any] = {"evaluation": {"every": 2, "batches": 2, "sample_tokens": 3}} | JOBS[name]
    (disk := tmp_path / "disk").mkdir()
    jobs, how = [4], dict[str, str]()
    if "memory" in sections:
        sections["memory"], jobs = sections["memory"] | {"offload_dir": str(disk)}, [2, 4]
        how["program"] = "tests.training.run.one_id"
    if name == "a stream":
        path, tokenizer = write_jsonl(tmp_path / "a.jsonl", texts(400)), write_tokenizer(tmp_path / "tokenizer.json")
        data = {"source": "stream", "path": str(path), "tokenizer": str(tokenizer), "workers": 1}
        sections["data"] = data | {"validation_fraction": 0.1}
    one, two = (run_config(tmp_path / run, 4, **sections) for run in ("one", "two"))
    wanted, _ = fit(one)
    for steps in jobs:
        two = run_config(tmp_path / "two", steps, **sections)
        done = outputs(start_job(two, tmp_path / "two.yaml", 2, **how))
        assert [code for code, _, _ in done] == [0, 0], done
        assert f"saved checkpoints/{steps:08d}" in done[0][1]
        assert all(word not in done[1][1] for word in ("plan", "loss", "saved")), "only the first one speaks"
    assert losses(two) == pytest.approx(losses(one), rel=1e-6)
    summary = json.loads((folder_of(two) / "summary.json").read_text())
    assert summary["eval_loss"] == pytest.approx(wanted.eval_loss, rel=1e-6)
    assert (summary["baseline_loss"], summary["tokens"]) == (wanted.baseline_loss, wanted.tokens)
    assert len(list((folder_of(two) / "tensorboard").iterdir())) == len(jobs)
    assert_same_bits(saved_state(two, 4).step, saved_state(one, 4).step)
    assert list(disk.iterdir()) == []
    if name == "a stream":
        facts = [json.loads((folder_of(run) / "checkpoints/00000004/facts.json").read_text()) for run in (one, two)]
        assert facts[0]["stream"] == facts[1]["stream"] and len(facts[0]["stream"]["lanes"]) == 8
    longer, whole = (run_config(tmp_path / run, 6, **sections) for run in ("two", "whole"))
    fit(longer)
    fit(whole)
    assert losses(longer) == pytest.approx(losses(whole), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "name", "first"), [(signal.SIGTERM, "SIGTERM", 1), (signal.SIGINT, "Ctrl-C", 0)], ids=["one", "Ctrl-C"]
)
def test_a_signal_stops_all_processes_after_the_same_step(
    tmp_path: Path, number: signal.Signals, name: str, first: int
):
    """SIGTERM to one process, and Ctrl-C, which a terminal sends to all."""
    config = run_config(tmp_path, 400, parallel=MESH, optimizer={"decay_steps": 1000})
    job = start_job(config, tmp_path / "job.yaml", 2)
    metrics = folder_of(config) / "metrics.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline and all(process.poll() is None for process in job)
        time.sleep(0.05)
    for process in job[first:]:
        os.kill(process.pid, number)
    done = outputs(job)
    assert [code for code, _, _ in done] == [0, 0], done
    steps = json.loads((folder_of(config) / "summary.json").read_text())["steps"]
    assert 2 < steps < 400
    assert f"Stopped by {name} after step {steps} of 400" in done[0][1]
    assert f"the same command continues with step {steps + 1}" in done[0][1]
    config = run_config(tmp_path, steps + 2, parallel=MESH, optimizer={"decay_steps": 1000})
    fit(config)
    fit(whole := run_config(tmp_path / "whole", steps + 2, parallel=MESH, optimizer={"decay_steps": 1000}))
    assert losses(config) == pytest.approx(losses(whole), rel=1e-5)


def check_that_sigterm_stops_the_job(folder: Path, moment: str, resumed: bool) -> None:
    """SIGTERM to one of two processes at `moment` (`damage/signalled.py`), and the run goes on from there."""
    decay = {"optimizer": {"decay_steps": 10_000}}
    if resumed:
        fit(run_config(folder, 3, parallel=MESH, **decay))
    config = run_config(folder, 600, parallel=MESH, **decay)
    how = {"program": "tests.training.damage.signalled", "environment": {"SIGNAL": moment}}
    done = outputs(start_job(config, folder / "job.yaml", 2, **how))
    assert [code for code, _, _ in done] == [0, 0], done
    [stopped] = map(
        int, re.findall(r"Stopped by SIGTERM after step (\d+) of .* the same command continues", done[0][1])
    )
    assert (3 if resumed else 0) < stopped < 600
    assert (folder_of(config) / "checkpoints" / f"{stopped:08d}" / MANIFEST).exists()
    _, recorded = fit(config := run_config(folder, stopped + 1, parallel=MESH, **decay))
    assert [record.step for record in recorded.records] == [stopped + 1]
    assert list(losses(config)) == list(range(1, stopped + 2))


@pytest.mark.long
def test_sigterm_before_the_first_step_of_a_resumed_job_stops_it_with_a_checkpoint(tmp_path: Path):
    check_that_sigterm_stops_the_job(tmp_path, "before the first step", resumed=True)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize(
    ("moment", "resumed"),
    [
        ("before the first step", False),
        ("in a step", False),
        ("in a step", True),
        ("between steps", False),
        ("between steps", True),
    ],
)
def test_sigterm_at_any_moment_stops_a_job_with_a_checkpoint(tmp_path: Path, moment: str, resumed: bool):
    check_that_sigterm_stops_the_job(tmp_path, moment, resumed)


@pytest.mark.long
def test_a_job_with_more_processes_than_the_first_expects_is_a_sentence_on_both(tmp_path: Path):
    """As where a host has an old command, or a launcher starts another number of processes."""
    config, port, patience = run_config(tmp_path, 4, parallel=MESH), free_port(), int(seconds(30))
    file = write_config(config, tmp_path / "job.yaml")
    job = [f"distributed.{key}" for key in (f"coordinator=127.0.0.1:{port}", f"timeout_s={patience}")]
    started = [
        start(file, *job, f"distributed.processes={2 + rank}", f"distributed.process_id={rank}", devices=4)
        for rank in range(2)
    ]
    ends = outputs(started)
    expects = f"process 1 on {socket.gethostname()} expects 3 processes and process 0 expects 2"
    for code, out, errors in ends:
        refused_by_command(code, out, errors.splitlines()[-1], expects)
    assert "not there: process 1" in ends[0][2] and not folder_of(config).exists()


def test_a_process_that_never_arrives_is_one_sentence(tmp_path: Path):
    config = run_config(tmp_path, 4, parallel=MESH)
    address = f"127.0.0.1:{free_port()}"
    job = [f"distributed.{key}" for key in (f"coordinator={address}", "processes=2", "process_id=0", "timeout_s=1")]
    [(code, out, errors)] = outputs([start(write_config(config, tmp_path / "job.yaml"), *job, devices=4)])
    parts = ("distributed.coordinator", repr(address), "process 0 of 2", "within 1 s", "not there: process 1")
    refused_by_command(code, out, errors.splitlines()[-1], *parts)
    assert "Traceback" not in errors
    assert not folder_of(config).exists()
