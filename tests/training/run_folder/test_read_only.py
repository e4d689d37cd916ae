"""Folders that cannot be written and files that cannot be read: one sentence, nothing changed, and nothing repeated."""

import ctypes
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from jaxpar.config import Config, UserError
from jaxpar.observe.events import Listener, StepRecord
from jaxpar.train import main
from jaxpar.training.errors import TrainingError
from tests.sentences import refused, refused_by_command
from tests.training.run_folder.test_folder import contents
from tests.training.runs import fit, folder_of, losses, run_config, write_config

STEPS = 4
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


@contextmanager
def without_privileges() -> Iterator[None]:
    """Permissions of files hold for this thread, even where it is root's: the privileges over them are put aside."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before, less = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    less[:] = before[:]
    less[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)  # of the effective ones, which come first
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


@contextmanager
def closed(path: Path, mode: int = 0o555) -> Iterator[None]:
    """Take permissions away from a file or folder for a while."""
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        with without_privileges():
            yield
    finally:
        path.chmod(before)


def config_in(folder: Path, steps: int = STEPS) -> Config:
    return run_config(folder, steps, checkpoint={"every": 2, "keep_last": 9})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A finished run with the checkpoints of steps 2 and 4."""
    config = config_in(tmp_path_factory.mktemp("whole"))
    fit(config)
    return config


def copy_of(whole: Config, folder: Path, steps: int = STEPS) -> Config:
    config = config_in(folder, steps)
    shutil.copytree(folder_of(whole), folder_of(config))
    return config


def test_a_new_run_where_nobody_may_write_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "runs").mkdir()
    config = config_in(tmp_path / "runs")
    file = write_config(config, tmp_path / "run.yaml")
    with closed(tmp_path / "runs"):
        status = main(["--config", str(file), "--set", "parallel.fsdp=8"])
    parts = ("run.dir", f"'{tmp_path / 'runs'}'", str(folder_of(config)), "written", "Permission denied")
    refused_by_command(status, "", capsys.readouterr().err, *parts)
    assert not list((tmp_path / "runs").iterdir())


def test_a_run_in_a_folder_that_became_read_only_is_one_sentence(tmp_path: Path, whole: Config):
    config = copy_of(whole, tmp_path, steps=STEPS + 2)
    before = contents(tmp_path)
    for _ in range(2):
        with closed(folder_of(config)), refused("run.dir", str(folder_of(config)), "Permission denied"):
            fit(config)
    assert contents(tmp_path) == before


def test_a_finished_run_in_a_read_only_folder_is_there_to_be_looked_at(tmp_path: Path, whole: Config):
    config = copy_of(whole, tmp_path)
    (folder_of(config) / "summary.json").write_text(
        '{"steps": 4, "loss": 1.5, "eval_loss": null, "baseline_loss": null, "tokens": 9, "train_seconds": 1.0, '
        '"compile_seconds": 1.0, "first_step_seconds": 1.0, "steady_step_seconds": 1.0, "peak_bytes": null, '
        '"predicted_bytes": null}'
    )
    with closed(folder_of(config)):
        summary, recorded = fit(config)
    assert (summary.steps, summary.loss) == (STEPS, 1.5)
    assert "already has its 4 steps, and nothing was changed" in recorded.messages[-1]


class Shuts(Listener):
    """Takes the right to write into the checkpoints' folder after step 3, and gives it back after step 5."""

    def __init__(self, folder: Path) -> None:
        self.shut = ExitStack()
        self.folder = folder

    def step(self, record: StepRecord) -> None:
        if record.step == 3:
            self.shut.enter_context(closed(self.folder))
        if record.step == 5:
            self.shut.close()


def test_a_save_that_may_not_be_written_costs_that_checkpoint_alone(tmp_path: Path):
    config = config_in(tmp_path, 6)
    folder = folder_of(config) / "checkpoints"
    _, recorded = fit(config, Shuts(folder))
    [reported] = [text for text in recorded.messages if "could not be written" in text]
    assert str(folder / "00000004") in reported and "Permission denied" in reported and "training goes on" in reported
    assert recorded.saves == [2, 6]
    assert sorted(path.name for path in folder.iterdir()) == ["00000002", "00000006"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "config.yaml",
            r"the record of what was run is damaged \(.*/config\.yaml: cannot be read \(Permission denied\)",
        ),
        ("plan.json", r"^run\.dir is .*/run cannot be written \(Permission denied\)$"),
        ("metrics.jsonl", r"/metrics\.jsonl of run 'run' cannot be used \(Permission denied\): the run stopped; once"),
        ("checkpoints", r"^checkpoint folder .*/checkpoints cannot be read \(Permission denied\)$"),
    ],
)
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, whole: Config, name: str, words: str):
    config = copy_of(whole, tmp_path, steps=STEPS + 2)
    for _ in range(2):
        with closed(folder_of(config) / name, 0), pytest.raises((UserError, TrainingError)) as refusal:
            fit(config)
        assert re.search(words, str(refusal.value)), refusal.value
    fit(config)
    assert list(losses(config)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["manifest.json", "facts.json"])
def test_a_checkpoint_that_may_not_be_read_is_skipped_and_named(tmp_path: Path, whole: Config, name: str):
    config = copy_of(whole, tmp_path, steps=STEPS + 2)
    newest = folder_of(config) / "checkpoints" / "00000004"
    with closed(newest / name, 0):
        _, recorded = fit(config)
    assert recorded.messages[0].startswith(f"checkpoint {newest} is skipped, because ")
    assert recorded.messages[0].endswith("cannot be read (Permission denied)")
    assert recorded.records[0].step == 3
    assert list(losses(config)) == [1, 2, 3, 4, 5, 6]
