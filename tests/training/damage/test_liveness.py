"""Nothing hangs: a real process that dies, stops, sleeps or never gets on ends the whole job with one sentence."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxpar.config import Config
from jaxpar.distributed.rendezvous.meeting import meet
from tests.patience import seconds
from tests.training.run.test_processes import PATIENCE_S, free_port, outputs
from tests.training.runs import MESH, ROOT, folder_of, run_config, start, write_config

SOON_S = seconds(60)
"""Within which everything must be over: what takes longer is ended, and fails."""
ENDS = "; the job ends here, and the same command continues it from its newest checkpoint"
HOST = socket.gethostname()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A run that would take hours."""
    return run_config(tmp_path, 10**6, parallel=MESH, optimizer={"decay_steps": 10**6})


def overrides(port: int, rank: int, *more: str) -> list[str]:
    own = (f"coordinator=127.0.0.1:{port}", "processes=2", f"process_id={rank}")
    return [*(f"distributed.{key}" for key in own), *more]


def start_two(config: Config, *more: str) -> list[subprocess.Popen[str]]:
    file, port = write_config(config, Path(config.run.dir) / "job.yaml"), free_port()
    return [start(file, *overrides(port, rank, *more), devices=4) for rank in range(2)]


def wait_for_steps(config: Config, job: list[subprocess.Popen[str]], steps: int = 3) -> None:
    """Until the job has logged so many."""
    metrics, deadline = folder_of(config) / "metrics.jsonl", time.monotonic() + PATIENCE_S
    while not (metrics.exists() and metrics.read_text().count("\n") >= steps):
        assert time.monotonic() < deadline and all(process.poll() is None for process in job), outputs(job)
        time.sleep(0.05)


def last_words(process: subprocess.Popen[str], within_s: float = SOON_S) -> tuple[int, str]:
    """Exit code and last line of stderr of a process that ends soon; it may not end with a trace of anything."""
    _, errors = process.communicate(timeout=within_s)
    assert "Traceback" not in errors and "*** Check failure" not in errors, errors
    return process.returncode, errors.splitlines()[-1]


def hit(config: Config, victim: int, number: signal.Signals, *more: str, within_s: float = SOON_S) -> tuple[int, str]:
    """Send a signal to one of two processes that train; the other's exit code and last line."""
    job = start_two(config, *more)
    try:
        wait_for_steps(config, job)
        os.kill(job[victim].pid, number)
        return last_words(job[1 - victim], within_s)
    finally:
        for process in job:
            process.kill()
            process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_killed_in_a_step_is_named_by_the_other(config: Config, victim: int):
    """JAX's coordination service dies with process 0, which ends the others with SIGABRT where nothing prevents it."""
    code, message = hit(config, victim, signal.SIGKILL, within_s=seconds(10))
    assert code == 1
    assert message.startswith(f"jaxpar: process {victim} on {HOST} died (it was ") and message.endswith(ENDS)
    assert victim == 0 or " step " in message


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_stopped_is_named_by_the_other(config: Config, victim: int):
    code, message = hit(config, victim, signal.SIGSTOP, "distributed.heartbeat_timeout_s=8", within_s=seconds(30))
    assert code == 1
    silent = (
        f"jaxpar: process {victim} on {HOST} gave no sign of life for 8 s (distributed.heartbeat_timeout_s; it was "
    )
    assert message.startswith(silent) and message.endswith(ENDS)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize(
    ("sleeps_at", "message"),
    [
        (
            "9",
            f"process 1 on {HOST} made no progress for 45 s (distributed.step_timeout_s), and the others wait for it "
            "(it was in step 10)",
        ),
        ("data", f"process 1 on {HOST} did nothing for 45 s, and the others wait for it (it was opening its data)"),
        (
            "compile",
            f"process 1 on {HOST} made no progress for 45 s (distributed.pause_timeout_s), and the others wait for it "
            "(it was compiling the step)",
        ),
    ],
)
def test_a_process_that_does_not_get_on_is_named_by_both(config: Config, sleeps_at: str, message: str):
    file, port = write_config(config, Path(config.run.dir) / "job.yaml"), free_port()
    bell = Path(config.run.dir, "bell")
    limit = ["distributed.pause_timeout_s=45"] if sleeps_at == "compile" else []
    awake = start(file, *overrides(port, 0, *limit), devices=4)
    sleep = {"SLEEP_AT": sleeps_at, "BELL": str(bell)}
    asleep = start(
        file, *overrides(port, 1, *limit), devices=4, program="tests.training.damage.stuck", environment=sleep
    )
    try:
        words = [last_words(process, PATIENCE_S) for process in (awake, asleep)]
        took = time.time() - float(bell.read_text())
    finally:
        for process in (awake, asleep):
            process.kill()
    assert words[0] == words[1]
    code, said = words[0]
    assert code == 1 and said.startswith(f"jaxpar: {message}{ENDS}; stack of process 1: stuck.py:")
    assert took > 45, "the limit of a step is kept, and not cut short"


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ([], "died (it was starting, last heard of "),
        pytest.param(["distributed.heartbeat_timeout_s=4"], "gave no sign of life for 4 s (", marks=pytest.mark.long),
    ],
    ids=["dies", "stops"],
)
def test_a_process_that_dies_or_stops_while_the_job_starts_is_named(config: Config, limit: list[str], said: str):
    port, over = free_port(), threading.Event()
    file = write_config(config, Path(config.run.dir) / "job.yaml")
    first = start(file, *overrides(port, 0, *limit), devices=4)

    def join() -> None:
        """Process 1 as far as the meeting."""
        with meet(f"127.0.0.1:{port}", 2, 1, PATIENCE_S)[0].connection:
            over.wait(PATIENCE_S if limit else 0)

    thread = threading.Thread(target=join)
    thread.start()
    try:
        code, message = last_words(first, PATIENCE_S)
    finally:
        over.set()
        thread.join()
    assert code == 1
    assert message.startswith(f"jaxpar: process 1 on {HOST} {said}") and message.endswith(ENDS)


@pytest.mark.long
def test_a_process_that_comes_late_and_with_a_mistake_sends_it_to_the_others(config: Config, tmp_path: Path):
    file, port = write_config(config, tmp_path / "job.yaml"), free_port()
    first = start(file, *overrides(port, 0), devices=4)
    time.sleep(8)
    second = start(file, *overrides(port, 1, "data.source=tokens", "data.path=/nowhere"), devices=4)
    mistake, reported = last_words(second, PATIENCE_S), last_words(first, PATIENCE_S)
    assert mistake[0] == 2 and "/nowhere" in mistake[1]
    assert reported[0] == 1
    message = mistake[1].removeprefix("jaxpar: ")
    assert reported[1] == f"jaxpar: process 1 on {HOST} stopped (it was opening its data) and reported: {message}"


@pytest.mark.long
def test_another_number_of_devices_than_the_layout_takes_is_one_sentence(config: Config, tmp_path: Path):
    file, port = write_config(config, tmp_path / "job.yaml"), free_port()
    job = [start(file, *overrides(port, rank), devices=1) for rank in range(2)]
    for rank, process in enumerate(job):
        code, message = last_words(process, PATIENCE_S)
        assert code == 2
        assert message.startswith(
            "jaxpar: parallel: the layout takes 8 devices, 4 in each of 2 processes, and process "
            f"{rank} of 2 on {HOST} sees 1, which makes 2; "
        )


@pytest.mark.long
def test_a_process_with_fewer_devices_than_it_should_have_names_itself(config: Config, tmp_path: Path):
    file, port = write_config(config, tmp_path / "job.yaml"), free_port()
    whole = "distributed.devices_per_process=4"
    job = [start(file, *overrides(port, rank, whole), devices=4 - 2 * rank) for rank in range(2)]
    words = [last_words(process, PATIENCE_S) for process in job]
    assert words[1][0] == 2
    assert words[1][1].startswith(
        f"jaxpar: distributed.devices_per_process: process 1 of 2 on {HOST} should have 4 devices and sees 2; look at "
    )
    assert words[0][0] in (1, 2), "it hears of it, or sees by itself that the numbers differ"
    assert "process 1" in words[0][1]


@pytest.mark.long
def test_a_job_of_local_processes_ends_with_the_one_that_was_killed(config: Config, tmp_path: Path):
    command = [sys.executable, "-m", "jaxpar.train", "--config", str(write_config(config, tmp_path / "job.yaml"))]
    launcher = [sys.executable, "launch/local.py", "--processes", "2", "--devices-per-process", "4", "--", *command]
    job = subprocess.Popen(launcher, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_steps(config, [job])
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGKILL)
        _, errors = job.communicate(timeout=seconds(15))
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == 128 + 9
    assert f"[0] jaxpar: process 1 on {HOST} died (it was " in errors
    assert "launch/local.py: process 1 was ended by SIGKILL" in errors
