"""Runs with a teacher: its likeliest tokens are computed once and stored in the run's folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.config import Config, LossConfig
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.training.run import run as run_file
from jaxpar.training.run.trainer import Trainer
from jaxpar.training.teacher import FOLDER
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
    tokens = prepared_chat(tmp_path / "chat", conversations() * 2, heldout_fraction=0.3).path
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
        patch.setattr(run_file, "scorer_of", computed)
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
