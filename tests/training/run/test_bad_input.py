"""The user's mistakes at the command line: one sentence on stderr, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxpar.train import main
from tests.patience import seconds
from tests.sentences import refused_by_command
from tests.training.runs import MESH, ROOT, fit, folder_of, run_config, start, write_config

CONFIG_MISTAKES = {
    "an unknown key": (["model.layerz=2"], ("model.layerz:", "no such key", " layers?")),
    "a key of another section": (["run.layers=2"], ("run.layers:", "no such key", " model.layers?")),
    "an unknown section": (["modell.layers=2"], ("modell:", "no such section", " model?")),
    "a wrong type": (["model.layers=four"], ("model.layers:", "a whole number", "'four'")),
    "a wrong choice": (["optimizer.name=muonn"], ("optimizer.name:", "'muonn'", " muon?")),
    "a number out of range": (["run.steps=0"], ("run.steps:", "at least 1", "got 0")),
    "no value": (["model.layers"], ("model.layers",)),
    "heads by tensor": (
        ["parallel.tensor=3", "parallel.fsdp=-1"],
        ("model.heads: 8", "parallel.tensor (3)"),
    ),
    "kv heads by tensor": (
        ["model.kv_heads=3", "model.heads=6", "model.head_dim=4"],
        ("model.kv_heads:", "a multiple or a divisor of parallel.tensor (2)", "got 3"),
    ),
    "sequence by context": (
        ["data.sequence_length=30"],
        ("data.sequence_length: 30", "parallel.context x"),
    ),
    "batch by data axes": (["data.batch_size=7"], ("data.batch_size: 7", "parallel.replica x fsdp x")),
    "batch by microbatches": (["parallel.microbatches=3"], ("data.batch_size: 8", "microbatches (")),
    "a mesh that is too large": (["parallel.replica=2"], ("parallel:", "16 devices", "are 8")),
    "a mesh that is too small": (["parallel.tensor=1"], ("parallel:", "4 of 8 devices")),
    "two free axes": (["parallel.fsdp=-1", "parallel.tensor=-1"], ("parallel:", "one axis", "-1", "fsdp and tensor")),
    "a run name with a slash": (["run.name=a/b"], ("run.name:", "the name of one folder", "'a/b'")),
    "a profile of no steps": (["run.profile=3"], ("run.profile:", "first:last", "'3'")),
    "a process that does not exist": (
        ["distributed.processes=2", "distributed.process_id=2"],
        ("distributed.process_id:", "less than distributed.processes (2)", "got 2"),
    ),
    "an unknown schedule": (
        ["parallel.pipe=2", "parallel.fsdp=1", "parallel.schedule=1f2b"],
        ("parallel.schedule:", "'1f2b'", " 1f1b?"),
    ),
    "a backend for other machines": (["attention.backend=cudnn"], ("attention.backend", "'cudnn'", "NVIDIA GPU")),
}


def refused(capsys: pytest.CaptureFixture[str], file: Path, *overrides: str, parts: tuple[str, ...] = ()) -> str:
    """The sentence with which the command refuses, and names `parts`; nothing else is on either stream."""
    capsys.readouterr()
    arguments = [part for override in overrides for part in ("--set", override)]
    return refused_by_command(main(["--config", str(file), *arguments]), *capsys.readouterr(), *parts)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small run's configuration; its `run.dir` is `tmp_path/runs`."""
    return write_config(run_config(tmp_path / "runs", 4, parallel=MESH), tmp_path / "run.yaml")


@pytest.mark.parametrize(("overrides", "parts"), CONFIG_MISTAKES.values(), ids=CONFIG_MISTAKES.keys())
def test_a_mistake_in_the_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path, overrides: list[str], parts: tuple[str, ...]
):
    refused(capsys, file, *overrides, parts=parts)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "run.yaml"),
        ("run: [1, 2\n", "run.yaml:"),
        ("run:\n  steps: 5\n  steps: 6\n", "run.yaml:3"),
        ("model:\n  layerz: 5\n", "run.yaml:2: model.layerz:"),
        ("- run\n", "run.yaml"),
    ],
    ids=["missing", "not YAML", "a key twice", "an unknown key", "a list"],
)
def test_a_configuration_file_that_cannot_be_used_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path, text: str | None, words: str
):
    file.unlink()
    if text is not None:
        file.write_text(text)
    assert words in refused(capsys, file)
    assert not (tmp_path / "runs").exists()


NPY = ".npy file with one dimension of unsigned integers"


def token_file(folder: Path, kind: str) -> Path:
    path = folder / "tokens.npy"
    tokens = np.arange(1000) % 50
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "no tokens":
        np.save(path, tokens[:0].astype(np.uint16))
    elif kind == "text":
        path.write_text("it was a dark and stormy night\n" * 20)
    elif kind == "a pickle":
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    else:
        keys = {"signed": np.int64, "floats": np.float32}
        np.save(path, tokens.astype(keys.get(kind, np.uint16)) + (60 if kind == "large tokens" else 0))
        if kind == "truncated":
            path.write_bytes(path.read_bytes()[:-100])
    return path


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("missing", ("does not exist", "tokens.npy'")),
        ("empty", ("0 bytes", NPY)),
        ("no tokens", ("no tokens",)),
        ("truncated", ("truncated", "1000 tokens of uint16", "2128 bytes")),
        ("text", ("header", NPY)),
        ("a pickle", ("object", NPY)),
        ("signed", ("int64", NPY)),
        ("large tokens", ("tokens below model.vocab=64",)),
    ],
)
def test_a_token_file_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path, kind: str, parts: tuple[str, ...]
):
    path = token_file(tmp_path, kind)
    given = path.with_name("tokenz.npy") if kind == "missing" else path
    refused(capsys, file, "data.source=tokens", f"data.path={given}", parts=(f"data.path='{given}'", *parts))
    assert not (tmp_path / "runs").exists()


def test_a_token_file_shorter_than_a_row(capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path):
    np.save(tmp_path / "short.npy", np.arange(20, dtype=np.uint16))
    message = refused(capsys, file, "data.source=tokens", f"data.path={tmp_path / 'short.npy'}")
    assert "20 tokens" in message
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path):
    (tmp_path / "runs").write_text("a file")
    refused(capsys, file, parts=("run.dir", str(tmp_path / "runs"), "Not a directory"))
    assert (tmp_path / "runs").read_text() == "a file"


def test_a_folder_of_another_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path):
    config = run_config(tmp_path / "runs", 1, parallel=MESH)
    fit(config)
    before = {path: path.read_bytes() for path in sorted(folder_of(config).rglob("*")) if path.is_file()}
    parts = ("another configuration", "run.seed: 0 -> 7", "model.layers: 3 -> 2")
    refused(capsys, file, "model.layers=2", "run.seed=7", parts=parts)
    assert before == {path: path.read_bytes() for path in sorted(folder_of(config).rglob("*")) if path.is_file()}


def test_a_configuration_in_the_folder_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path
):
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("run: [")
    assert f"{folder / 'config.yaml'}:" in refused(capsys, file)
    assert (folder / "config.yaml").read_text() == "run: ["


def test_the_command_itself_prints_one_sentence_and_ends_with_two(tmp_path: Path, file: Path):
    with start(file, "model.layerz=2") as process:
        out, errors = process.communicate(timeout=seconds(120))
    refused_by_command(process.returncode, out, errors, "model.layerz:", " layers?")


def test_help_is_quick_and_leaves_jax_alone():
    """Three seconds are for a busy machine; without JAX it takes a fraction of one."""
    code = (
        "import sys; from jaxpar.train import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'jax', 'numpy', 'orbax', 'rich'} & set(sys.modules), 'heavy imports'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "--set SECTION.KEY=VALUE" in done.stdout
    assert "checkpoint.every" in done.stdout
    assert os.fspath(ROOT) not in done.stdout
