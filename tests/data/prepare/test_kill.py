"""kill -9 of a preparation at any moment: the same command, given again until it ends, makes the same folder."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxpar.data.prepare import prepare
from jaxpar.data.prepare.job import WORK
from tests.data.folders import contents, options, quiet, texts, write_jsonl
from tests.patience import seconds
from tests.processes import ROOT, run_python


@pytest.mark.parametrize("more", [[], ["--train-bpe"]], ids=["a given tokenizer", "one that is trained"])
def test_killed_preparations_make_the_same_folder(tmp_path, more):
    done = run_python("-m", "tests.data.prepare.killed", tmp_path, "--kills", 8, "--seed", 1, *more)
    assert done.returncode == 0, done.stderr
    [kills] = re.findall(r"^(\d+) kills, \d+ folders finished, all alike$", done.stdout, re.MULTILINE)
    assert int(kills) >= 8


def test_the_workers_of_a_killed_command_end_with_it_and_the_command_goes_on(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", texts(2000))
    wanted = prepare(options(tmp_path / "whole" / "out", source, unit_bytes=2000, shard_tokens=50_000), quiet())
    asked = options(tmp_path / "out", source)
    command = [
        sys.executable, "-m", "jaxpar.prepare", "--input", str(source), "--tokenizer", str(asked.tokenizer),
        "--out", str(asked.out), "--unit-bytes", "2000", "--shard-tokens", "50000", "--validation-fraction", "0.2",
        "--processes", "2",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed:
        units = asked.out / WORK / "units"
        deadline = time.monotonic() + seconds(60)
        while not (units.exists() and len(list(units.glob("*.json"))) >= 3):
            assert time.monotonic() < deadline and killed.poll() is None, "the preparation does not get on"
            time.sleep(0.002)
        workers = descendants(killed.pid)
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    assert len(workers) >= 2
    while any(map(alive, workers)):
        assert time.monotonic() < deadline, "workers outlive the command"
        time.sleep(0.01)
    done = run_python(*command[1:])
    assert done.returncode == 0, done.stderr
    assert "units finished before" in done.stdout
    assert contents(asked.out) == contents(wanted.path)


def descendants(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
