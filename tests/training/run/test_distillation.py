"""Runs with a teacher: its likeliest tokens are computed once and stored in the run's folder."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.agreement import Service
from jaxpar.config import Config, LossConfig, UserError
from jaxpar.data.packing import RowsWith
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.training.run import setup
from jaxpar.training.run.trainer import Trainer
from jaxpar.training.teacher import FOLDER, TeacherFiles
from tests.checkpoint.test_agreement import job
from tests.data.chat_files import prepared_chat
from tests.goldens.chat.generate import conversations
from tests.interop.folders import copy_of, rewrite, tensors
from tests.sentences import refused
from tests.training.run.test_dpo_training import config_of
from tests.training.runs import Recorder

CHOICES = 5


def taught(base: Path, tokens: Path, **more: Any) -> Config:
    """A run of `base` that has itself as the teacher."""
    config = config_of(base, tokens, **{"data.sequence_length": 128, "run.steps": 3, **more})
    loss = LossConfig(name="distill", reference=str(base), top_k=CHOICES, temperature=1.5)
    return replace(config, loss=loss)


def files(config: Config) -> list[Path]:
    return sorted((Path(config.run.dir) / config.run.name / FOLDER).glob("*.npy"))


@pytest.mark.long
def test_the_teacher_is_computed_once_and_a_model_begins_as_its_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base = copy_of("llama", tmp_path / "base")
    tokens = prepared_chat(tmp_path / "chat", conversations() * 2, validation_fraction=0.3).path
    config, heard = taught(base, tokens, **{"evaluation.every": 2, "evaluation.batches": 1}), Recorder()
    Trainer(config).fit([heard])
    made, texts = files(config), {text for text, *_ in heard.progresses}
    assert made and len(texts) == 1 and f"the {CHOICES} likeliest tokens" in texts.pop()
    first, last = heard.records[0], heard.records[-1]
    assert first.metrics is not None and first.metrics["divergence"] == pytest.approx(0, abs=1e-5)
    assert heard.evaluations and last.loss < first.loss

    def computed(*_: Any) -> Any:
        raise AssertionError("the teacher is computed again")

    with monkeypatch.context() as patch:
        patch.setattr(setup, "scorer_of", computed)
        Trainer(replace(config, run=replace(config.run, steps=4))).step()
        row = Trainer(config).data.train.row(0)
    assert row["teacher_tokens"].shape == (128, CHOICES)
    inside = row["segments"] > 0
    assert (np.exp(row["teacher_likely"][inside]).sum(-1) < 1).all()
    assert (np.diff(row["teacher_likely"]) <= 0).all()
    for file in made:
        file.write_bytes(file.read_bytes()[:-40] + bytes(40))
    with refused("is damaged", "remove it"):
        Trainer(config).data.train.row(0)
    for file in made:
        file.unlink()
    with refused("is missing", "start the run again"):
        Trainer(config).data.train.row(0)


@pytest.mark.long
def test_a_run_that_continues_computes_the_rows_of_its_new_mixture_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    base = copy_of("llama", tmp_path / "base")
    one, two = (prepared_chat(tmp_path / name, conversations()[part:] * 2).path for name, part in (("a", 0), ("b", 3)))
    config = taught(base, one, **{"run.steps": 2, "evaluation.every": 0})

    def mixed(steps: int, weights: tuple[float, float]) -> Config:
        data = replace(config.data, path=None, sources=dict(zip(map(str, (one, two)), weights, strict=True)))
        return replace(config, data=data, run=replace(config.run, steps=steps))

    Trainer(mixed(2, (1, 1))).fit([Recorder()])
    before, scorers, make = files(config), list[object](), setup.scorer_of
    monkeypatch.setattr(setup, "scorer_of", lambda *args: scorers.append(args) or make(*args))
    trainer, heard = Trainer(mixed(4, (1, 0))), Recorder()
    trainer.fit([heard])
    assert any("mixture changes" in text for text in heard.messages)
    made = set(files(config)) - set(before)
    assert made and len(scorers) == 1 and heard.progresses[-1][1] == len(made)
    run = trainer._run
    assert run.models.reference is not None and isinstance(run.data.train, RowsWith)
    used = TeacherFiles(run.config, run.models.reference), range(2 * 4, 6 * 4)
    assert made <= {used[0].row_file(run.data.train.plain.row(example)).path for example in used[1]}


class _OneScore:
    """A scorer that gives the same values for every token."""

    def scored(self, texts: list[list[int]], choices: int) -> Iterator[SimpleNamespace]:
        for text in texts:
            shape = len(text) - 1, choices
            yield SimpleNamespace(tokens=np.ones(shape, np.int32), choices=np.full(shape, -2.0, np.float32))


@pytest.mark.long
def test_the_teacher_is_not_asked_for_rows_after_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base = copy_of("llama", tmp_path / "base")
    tokens = prepared_chat(tmp_path / "chat", conversations() * 2, validation_fraction=0.0).path
    config = taught(base, tokens, **{"run.steps": 1, "evaluation.every": 0, "data.batch_size": 2})
    once: dict[str, Any] = {"path": None, "sources": {str(tokens): 1.0}, "max_epochs": {str(tokens): 1.0}}
    config = replace(config, data=replace(config.data, **once))
    rows = Trainer(config)._run.data.examples
    assert rows is not None
    monkeypatch.setattr(setup, "scorer_of", lambda *_: _OneScore())
    config = replace(config, run=replace(config.run, steps=rows // config.data.batch_size))
    Trainer(config)._run.provide_reference()
    assert files(config)


def test_processes_wait_for_the_files_and_hear_why_they_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = taught(copy_of("llama", tmp_path / "base"), tmp_path)
    files_of_run = TeacherFiles(config, SimpleNamespace(digest="d"))  # pyright: ignore[reportArgumentType]
    tokens = np.arange(8, dtype=np.int32)
    row, scorer, service = {"tokens": tokens, "segments": np.ones_like(tokens)}, _OneScore(), Service(2)

    def write(process: int) -> None:
        with job(service, process):
            files_of_run.write([row], scorer)  # pyright: ignore[reportArgumentType]

    def answer(key: str, timeout_ms: int) -> str:
        """Process 0 answers once process 1 asks."""
        del key, timeout_ms
        service.values.clear()
        with suppress(UserError):
            write(0)
        (text,) = service.values.values()
        return text

    monkeypatch.setattr(service, "blocking_key_value_get", answer)
    write(1)
    assert (files_of_run.fields(row)["teacher_likely"] == -2).all()
    (file,) = files(config)
    file.unlink()
    files_of_run.folder.rmdir()
    files_of_run.folder.write_text("a file")
    for process in (0, 1):
        with refused(FOLDER, "cannot be written", "the same command"):
            try:
                write(process)
            finally:
                service.values.clear()


def test_a_teacher_of_another_tokenizer_is_refused(tmp_path: Path):
    base, other = copy_of("llama", tmp_path / "base"), copy_of("llama", tmp_path / "other", vocab_size=60)
    own = tensors(other)
    rewrite(other, {name: own[name][:60] for name in ("model.embed_tokens.weight", "lm_head.weight")})
    tokens = prepared_chat(tmp_path / "chat", conversations()).path
    config = taught(base, tokens)
    with refused("loss.reference", "vocabulary of 60", "same tokenizer"):
        Trainer(replace(config, loss=replace(config.loss, reference=str(other))))
    assert HFFolder(base).model.vocab == 61
    with refused("loss.top_k (61)", "below its vocabulary"):
        Trainer(replace(config, loss=replace(config.loss, top_k=61)))
