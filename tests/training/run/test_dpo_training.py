"""Runs on pairs of answers: the reference is computed once and kept, and training tells the answers apart."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config, LoraConfig, LossConfig, load_config
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.training.run import reference
from jaxpar.training.run.run import Run
from jaxpar.training.run.trainer import Trainer
from tests.data.chat_files import prepared_chat, turns
from tests.data.preference_files import pairs, prepared_marked, prepared_pairs
from tests.interop.folders import copy_of, rewrite, tensors
from tests.sentences import refused
from tests.training.runs import Recorder

DPO = Path(__file__).parents[3] / "configs" / "dpo.yaml"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return copy_of("llama", tmp_path / "base")


def config_of(base: Path, tokens: Path, **more: Any) -> Config:
    """`configs/dpo.yaml` for a tiny model, with other keys changed."""
    overrides = {
        "run.init_from": base, "run.dir": base.parent / "runs", "run.steps": 12,
        "optimizer.decay_steps": 30, "run.log_every": 1,
        "run.compile_cache": "null", "data.path": tokens, "data.sequence_length": 256, "data.batch_size": 4,
        "parallel.tensor": 2, "parallel.context": 2, "optimizer.learning_rate": 3e-3, "optimizer.warmup_steps": 2,
        "precision.compute": "float32", "evaluation.every": 0,
    }  # fmt: skip
    config = load_config(DPO, [f"{key}={value}" for key, value in (overrides | more).items()])
    return replace(config, model=HFFolder(base).model)


def files(tokens: Path) -> list[Path]:
    return sorted(tokens.glob("reference-*.npy"))


def test_the_reference_is_computed_once_and_the_model_begins_as_its_equal(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tokens = prepared_pairs(tmp_path / "pairs").path
    config, heard = config_of(base, tokens), Recorder()
    run = Run(config)
    run.provide_reference(heard)
    (file,) = files(tokens)
    (text,) = {text for text, *_ in heard.progresses}
    assert "Computing" in text and "32 documents" in text, "one line, however long it takes"
    assert [done for _, done, _ in heard.progresses][:: len(heard.progresses) - 1] == [0, 32]
    metrics = run.step()
    assert float(metrics.loss) == pytest.approx(math.log(2), rel=1e-6)
    rewards = {name: float(value) for name, value in metrics.report.items()}
    assert set(rewards) == {"reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy"}
    assert all(abs(rewards[f"reward_{name}"]) < 1e-5 for name in ("chosen", "rejected", "margin"))

    def computed(*_: Any) -> Any:
        raise AssertionError("the reference is computed again")

    with monkeypatch.context() as patch:
        patch.setattr(reference, "place_on", computed)
        again = Run(config)
        again.provide_reference(heard)
        values = again.data.paired[0].rows.reference.values
        assert values is not None and (values < 0).all() and values.shape == (32,)
        np.testing.assert_array_equal(values, run.data.paired[0].rows.reference.values)
        # Other weights, another precision and other tokens have values of their own.
        rewrite(base, {"lm_head.weight": 2 * tensors(base)["lm_head.weight"]})
        with pytest.raises(AssertionError, match="computed again"):
            Run(config).provide_reference()
    file.write_bytes(file.read_bytes()[:-40] + bytes(40))
    with refused(str(file), "damaged", "remove it"):
        reference._stored(run.data.paired[0], run.models.reference, config)  # pyright: ignore[reportArgumentType]


def test_what_does_not_go_together_is_refused(base: Path, tmp_path: Path):
    tokens = prepared_pairs(tmp_path / "pairs", pairs()[:4]).path
    chat = prepared_chat(tmp_path / "chat", [{"messages": turns("a", "b")}] * 20).path
    with refused("loss.name: dpo", f"data.path='{chat}'", "--format preference"):
        Trainer(config_of(base, chat))
    with refused("loss.name: cross_entropy", "rejected answers", "loss.name: dpo"):
        Trainer(replace(config_of(base, tokens), loss=LossConfig()))
    with refused("loss.reference", "does not exist"):
        Run(config_of(base, tokens, **{"loss.reference": tmp_path / "none"})).provide_reference()
    other = copy_of("llama", tmp_path / "other", vocab_size=60)
    own = tensors(other)
    rewrite(other, {name: own[name][:60] for name in ("model.embed_tokens.weight", "lm_head.weight")})
    with refused("loss.reference", "vocabulary of 60", "tokens of 61", "same tokenizer"):
        Run(config_of(base, tokens, **{"loss.reference": other})).provide_reference()


@pytest.mark.long
def test_a_run_learns_to_tell_answers_apart_goes_on_and_notices_another_reference(base: Path, tmp_path: Path):
    folder = prepared_pairs(tmp_path / "pairs", pairs() * 3, validation_fraction=0.2)
    config = config_of(base, folder.path, **{"evaluation.every": 6, "checkpoint.every": 6})
    half, whole, other = Recorder(), Recorder(), Recorder()
    Trainer(replace(config, run=replace(config.run, steps=6))).fit([half])
    summary = Trainer(config).fit([whole])
    assert len(files(folder.path)) == 2, "of training pairs, and of validation pairs"
    computing = [bool(recorder.progresses) for recorder in (half, whole)]
    assert computing == [True, False]
    first, last = half.records[0], whole.records[-1]
    assert first.loss == pytest.approx(math.log(2), rel=1e-5) and summary.loss < 0.6
    assert first.metrics is not None and last.metrics is not None
    assert last.metrics["reward_margin"] > 0.2 > abs(first.metrics["reward_margin"])
    assert last.metrics["reward_accuracy"] > 0.8 and "eval_reward_accuracy" in last.metrics
    assert summary.eval_loss == whole.evaluations[-1][1] and summary.baseline_loss is None

    rewrite(base, {"lm_head.weight": 2 * tensors(base)["lm_head.weight"]})
    with refused("compares its model with", str(base), "same weights"):
        Trainer(replace(config, run=replace(config.run, steps=13))).fit([other])
    assert not other.progresses


@pytest.mark.long
def test_factors_are_trained_on_pairs_and_the_reference_is_the_model_below(base: Path, tmp_path: Path):
    tokens = prepared_pairs(tmp_path / "pairs").path
    config = replace(config_of(base, tokens, **{"evaluation.batches": 0}), lora=LoraConfig(rank=4))
    recorder = Recorder()
    Trainer(config).fit([recorder])
    first, last = recorder.records[0], recorder.records[-1]
    assert first.loss == pytest.approx(math.log(2), rel=1e-6)
    assert last.loss < 0.65


@pytest.mark.long
def test_a_run_on_pairs_under_a_pipeline_ends_with_a_sample(base: Path, tmp_path: Path):
    tokens, said = prepared_pairs(tmp_path / "pairs", pairs() * 3, validation_fraction=0.2).path, []

    class Heard(Recorder):
        def sample(self, prompt: str, continuation: str) -> None:
            said.append((prompt, continuation))

    more = {
        "parallel.pipe": 2, "parallel.tensor": 1, "parallel.context": 1, "run.steps": 1, "evaluation.batches": 0,
        "evaluation.sample_tokens": 3,
    }  # fmt: skip
    Trainer(config_of(base, tokens, **more), devices=jax.devices()[:2]).fit([Heard()])
    assert len(said) == 1 and said[0][0]


@pytest.mark.long
def test_marked_answers_begin_with_a_loss_of_a_half_and_are_told_apart(base: Path, tmp_path: Path):
    tokens = prepared_marked(tmp_path / "marked").path
    config = config_of(base, tokens, **{"loss.name": "kto", "evaluation.batches": 0})
    recorder = Recorder()
    Trainer(config).fit([recorder])
    first, last = recorder.records[0], recorder.records[-1]
    assert first.loss == pytest.approx(0.5, rel=1e-5) and last.loss < 0.49
    assert first.metrics is not None and last.metrics is not None
    assert abs(first.metrics["kl"]) < 1e-4 and last.metrics["reward_margin"] > 0.02
    with refused("loss.name: dpo", "pairs of answers", "--format preference"):
        Trainer(config_of(base, tokens))
    with refused("loss.name: cross_entropy", "rejected answers", "loss.name: kto"):
        Trainer(replace(config, loss=LossConfig()))
