"""The user's mistakes at the command line: one sentence on stderr, exit code 2, no traceback, nothing written."""

from pathlib import Path

import numpy as np
import pytest

from jaxpar.train import main
from tests.patience import seconds
from tests.sentences import refused_by_command
from tests.training.runs import MESH, fit, folder_of, run_config, start, write_config

CONFIG_MISTAKES = [
    (["model.layers=four"], ("model.layers:", "a whole number", "'four'")),
    (["parallel.replica=2"], ("parallel:", "16 devices", "are 8")),
    (["parallel.pipe=2", "parallel.fsdp=1", "parallel.schedule=1f2b"], ("parallel.schedule:", "'1f2b'", " 1f1b?")),
    (["attention.backend=cudnn"], ("attention.backend", "'cudnn'", "NVIDIA GPU")),
]
"""One of each moment: reading, the mesh, the plan's schedule and its kernels. `tests/config` has the sentences."""


def refused(capsys: pytest.CaptureFixture[str], file: Path, *overrides: str, parts: tuple[str, ...] = ()) -> str:
    """The sentence with which the command refuses, and names `parts`; nothing else is on either stream."""
    capsys.readouterr()
    arguments = [part for override in overrides for part in ("--set", override)]
    return refused_by_command(main(["--config", str(file), *arguments]), *capsys.readouterr(), *parts)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small run's configuration; its `run.dir` is `tmp_path/runs`."""
    return write_config(run_config(tmp_path / "runs", 4, parallel=MESH), tmp_path / "run.yaml")


@pytest.mark.parametrize(("overrides", "parts"), CONFIG_MISTAKES, ids=lambda case: case[0])
def test_a_mistake_in_the_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path, overrides: list[str], parts: tuple[str, ...]
):
    refused(capsys, file, *overrides, parts=parts)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("tokens", "part"), [(np.arange(1000) % 50 + 60, "below model.vocab=64"), (np.arange(20), "20 tokens")]
)
def test_a_token_file_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path, tokens: np.ndarray, part: str
):
    np.save(path := tmp_path / "tokens.npy", tokens.astype(np.uint16))
    refused(capsys, file, "data.source=tokens", f"data.path={path}", parts=(str(path), part))
    assert not (tmp_path / "runs").exists()


def test_a_configuration_file_that_cannot_be_used_is_named(capsys: pytest.CaptureFixture[str], file: Path):
    file.write_text("model:\n  layerz: 5\n")
    refused(capsys, file, parts=("run.yaml:2: model.layerz:",))


def test_a_folder_of_another_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path):
    config = run_config(tmp_path / "runs", 1, parallel=MESH)
    fit(config)
    before = {path: path.read_bytes() for path in sorted(folder_of(config).rglob("*")) if path.is_file()}
    parts = ("another configuration", "run.seed: 0 -> 7", "model.layers: 3 -> 2", "optimizer.options.beta1: 0.9 -> 0.8")
    changes = "model.layers=2", "run.seed=7", "optimizer.options.beta1=0.8", "optimizer.learning_rate=0.003"
    sentence = refused(capsys, file, *changes, parts=(*parts, str(folder_of(config))))
    assert "learning_rate" not in sentence, "it may change"
    assert before == {path: path.read_bytes() for path in sorted(folder_of(config).rglob("*")) if path.is_file()}


def test_a_configuration_in_the_folder_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path
):
    (saved := tmp_path / "runs" / "run" / "config.yaml").parent.mkdir(parents=True)
    saved.write_text("run: [")
    refused(capsys, file, parts=(f"{saved}:",))
    assert saved.read_text() == "run: ["


def test_the_command_itself_prints_one_sentence_and_ends_with_two(tmp_path: Path, file: Path):
    with start(file, "model.layerz=2") as process:
        out, errors = process.communicate(timeout=seconds(120))
    refused_by_command(process.returncode, out, errors, "model.layerz:", " layers?")
