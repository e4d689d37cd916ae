"""Two jobs on one run's folder: the second is refused in a sentence that states who holds it, and a kill frees it."""

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jaxpar.train import main
from jaxpar.training.run_folder.lock import LOCK_FILE, RunLock
from tests.sentences import refused
from tests.training.runs import ROOT, fit, folder_of, run_config, write_config

HOLDER = """
import sys
from pathlib import Path
from jaxpar.training.run_folder.lock import RunLock

lock = RunLock(Path(sys.argv[1]))
assert lock.take() is None
print("held", flush=True)
sys.stdin.read()
lock.release()
"""


@contextmanager
def held_by_another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of `folder` until its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_second_job_is_refused_with_the_holder_of_the_folder_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = run_config(tmp_path, 2, run={"compile_cache": None}, parallel={"fsdp": 8})
    with held_by_another(folder_of(config)) as holder:
        assert main(["--config", str(write_config(config, tmp_path / "run.yaml"))]) == 2
        [sentence] = capsys.readouterr().err.splitlines()
        assert files_of(folder_of(config)) == [LOCK_FILE]
    who = f"process {holder.pid} on {socket.gethostname()}"
    assert re.fullmatch(
        rf"jaxpar: {re.escape(str(folder_of(config)))} is in use by {re.escape(who)} since "
        r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC; wait for its end or stop it, or choose another run\.name",
        sentence,
    )


def test_a_kill_frees_the_folder_and_a_run_leaves_no_lock(tmp_path: Path):
    config = run_config(tmp_path, 1)
    with held_by_another(folder_of(config)) as holder:
        holder.kill()
        assert holder.wait() == -signal.SIGKILL
    assert files_of(folder_of(config)) == [LOCK_FILE], "the name stays behind, and holds nobody up"
    summary, _ = fit(config)
    assert summary.steps == 1
    assert LOCK_FILE not in files_of(folder_of(config))


def test_a_holder_that_ends_well_removes_the_file(tmp_path: Path):
    with held_by_another(tmp_path) as holder:
        assert holder.stdin is not None
        holder.stdin.close()
        assert holder.wait() == 0
        assert files_of(tmp_path) == []


def test_of_many_that_come_and_go_one_at_a_time_is_in(tmp_path: Path):
    """Locks whose file is removed at the end are known for a race: the name may be another file than the locked one."""
    inside, turns = tmp_path / "inside", 60
    code = f"""
import os, sys
from pathlib import Path
from jaxpar.config import UserError
from jaxpar.training.run_folder.lock import RunLock

done = 0
while done < {turns}:
    lock = RunLock(Path(sys.argv[1]))
    try:
        lock.take()
    except UserError:
        continue
    os.close(os.open(sys.argv[2], os.O_CREAT | os.O_EXCL))  # fails where another is in
    os.unlink(sys.argv[2])
    lock.release()
    done += 1
"""
    command = [sys.executable, "-c", code, str(tmp_path / "run"), str(inside)]
    crowd = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in crowd:
        _, errors = process.communicate()
        assert process.returncode == 0, errors


@pytest.mark.parametrize(
    "text", [b"", b'{"host": "n1", "pi', b"[]", b'{"host": "a\\u001b[2J", "pid": 1, "since": "2026-01-01"}', b"\xff"]
)
def test_a_lock_file_without_readable_content_still_holds(tmp_path: Path, text: bytes):
    holder, second = RunLock(tmp_path), RunLock(tmp_path)
    holder.take()
    (tmp_path / LOCK_FILE).write_bytes(text)
    with refused(f"{tmp_path} is in use by another job", "wait"):
        second.take()
    holder.release()
    assert second.take() is None
    second.release()


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    _, recorded = fit(run_config(tmp_path, 1))
    assert recorded.messages[0] == (
        f"The file system of {tmp_path / 'run'} has no locks (No locks available): "
        "a second job in this folder would not be noticed."
    )
