"""Runs that fail: errors in a listener, full disks, interrupted saves, and what is left of them."""

import errno
import json
import resource
from dataclasses import dataclass
from pathlib import Path

import pytest

from jaxpar.checkpoint import CheckpointError
from jaxpar.observe.events import Listener, RunInfo, StepRecord
from jaxpar.observe.writers.event_log import EVENTS_FILE, EventLog
from jaxpar.training.errors import TrainingError
from tests.sentences import refused
from tests.training.runs import MESH, fit, folder_of, losses, run_config


class Broken(Listener):
    """A listener with a fault of its own."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.closed = error, False

    def step(self, record: StepRecord) -> None:
        if record.step == 3:
            raise self.error

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("error", [ValueError("a fault"), KeyboardInterrupt()], ids=["fault", "Ctrl-C"])
def test_an_error_or_ctrl_c_ends_the_run_and_the_save_in_the_making_is_completed(tmp_path: Path, error: BaseException):
    config = run_config(tmp_path, 6, parallel=MESH, checkpoint={"every": 2})
    broken = Broken(error)
    with pytest.raises(type(error)):
        fit(config, broken)
    assert broken.closed
    _, recorded = fit(config)
    assert recorded.records[0].step == 3, "the checkpoint of step 2 was complete"


class FullDisk(Listener):
    """The kernel lets no file grow beyond `limit` bytes, from one save's end until another one's failure is
    reported."""

    def __init__(self, limit: int, after: int, until: int) -> None:
        self.limit, self.after, self.until = limit, after, until
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def saved(self, step: int, path: str) -> None:
        if step == self.after:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.before[1]))

    def message(self, text: str) -> None:
        if f"{self.until:08d} could not be written" in text:
            self.close()

    def close(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def test_a_run_goes_on_while_the_disk_is_full_and_nothing_is_missing_in_the_end(tmp_path: Path):
    config = run_config(tmp_path, 9, parallel=MESH, checkpoint={"every": 2, "keep_last": 9})
    checkpoints = folder_of(config) / "checkpoints"
    summary, recorded = fit(config, FullDisk(2**9, after=2, until=6))
    failed = [message for message in recorded.messages if message.endswith("; training goes on.")]
    assert "JsonLines: File too large; training goes on." in failed
    assert [message.split(" (")[0] for message in failed if "checkpoint" in message] == [
        f"checkpoint {checkpoints}/{step:08d} could not be written" for step in (4, 6)
    ]
    assert recorded.saves == [2, 8, 9]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["00000002", "00000008", "00000009"]
    assert summary.steps == 9
    assert list(losses(config)) == list(range(1, 10))


def test_a_last_save_that_fails_is_one_sentence_and_the_run_continues_from_the_one_before(tmp_path: Path):
    config = run_config(tmp_path, 6, parallel=MESH, checkpoint={"every": 4})
    with refused("/00000006", "could not be written", "File too large", error=CheckpointError):
        fit(config, FullDisk(2**15, after=4, until=99))
    summary, recorded = fit(config)
    assert [record.step for record in recorded.records] == [5, 6]
    assert (summary.steps, recorded.saves) == (6, [6])


def test_a_file_that_cannot_be_made_ends_the_run_with_a_sentence(tmp_path: Path):
    config = run_config(tmp_path, 6, parallel=MESH)
    fit(run_config(tmp_path, 2, parallel=MESH))
    (folder_of(config) / "metrics.jsonl").unlink()
    (folder_of(config) / "metrics.jsonl").mkdir()
    with refused("metrics.jsonl", "run 'run'", "Is a directory", error=TrainingError):
        fit(config)


@dataclass
class Fails(Listener):
    """Ends a run when it begins."""

    error: Exception

    def start(self, info: RunInfo) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), TimeoutError("no answer")])
def test_an_error_of_the_network_is_not_called_one_of_a_file(tmp_path: Path, error: OSError):
    config = run_config(tmp_path, 1, parallel={"fsdp": 1})
    with pytest.raises(type(error)) as raised:
        fit(config, EventLog(), Fails(error))
    assert raised.value is error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space"), ConnectionResetError("reset"), ValueError("odd")])
def test_the_log_of_a_run_that_fails_has_the_traceback(tmp_path: Path, error: Exception):
    config = run_config(tmp_path, 1, parallel={"fsdp": 1})
    with pytest.raises(TrainingError if isinstance(error, OSError) and error.errno else type(error)):
        fit(config, EventLog(), Fails(error))
    *_, failed, closed = map(json.loads, (folder_of(config) / EVENTS_FILE).read_text().splitlines())
    assert (failed["event"], closed["event"]) == ("failed", "close")
    assert str(error) in failed["error"] and "in start\n    raise self.error" in failed["traceback"]
