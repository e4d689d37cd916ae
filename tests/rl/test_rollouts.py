"""Runs that learn from their own answers: log-probabilities, resuming, what is refused."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.mappings.policy import PolicyConfig
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.config.schema.reinforcement import RlConfig
from jaxpar.generation.generator import Generator
from jaxpar.generation.sampling import Sampling
from jaxpar.interop.sources.open_source import open_source
from jaxpar.interop.sources.tokenizer import text_of
from jaxpar.rl.answers import PER_TOKEN, Answer
from jaxpar.rl.experience import Experience
from jaxpar.rl.prompts import Prompt
from jaxpar.rl.run import RolloutRun
from jaxpar.rl.sampling.rollouts import Rollouts
from jaxpar.training.errors import TrainingError
from jaxpar.training.monitor.anomaly_monitor import AnomalyMonitor
from jaxpar.training.rate_sweep import sweep_rates
from jaxpar.training.run.trainer import Trainer
from tests.rl.runs import config_of, devices_of, log_probabilities64
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.small_run import small
from tests.training.runs import Recorder

DRAWN = Sampling(temperature=1.0)
LAYOUTS: dict[str, dict[str, Any]] = {
    "one device": {},
    "split": {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3},
    "stages": {"pipe": 2, "fsdp": 2, "microbatches": 2},
}


@pytest.mark.matrix(quick=("one device", "split"), ci=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_have_the_log_probabilities_of_float64(tmp_path: Path, layout: str):
    """Each token was drawn with the probability that a float64 decoder gives it, on any mesh, packed or not."""
    config = config_of(tmp_path, 2, parallel=LAYOUTS[layout], data={"batch_size": 8})
    run = RolloutRun(config, devices=devices_of(config))
    with closing(run.rewarder):
        rows = run._batch(0)
    likely = log_probabilities64(run, jax.device_get(run.current_weights()), rows)
    answer = rows["mask"] > 0
    assert answer.sum() > 16 and rows["segments"].max() > 1, "answers share rows"
    np.testing.assert_allclose(rows["sampled"][answer], likely[answer], atol=1e-5)
    assert all(not rows[name][~answer].any() for name in PER_TOKEN)
    metrics = run.step()
    assert float(metrics.report["mismatch_kl"]) < 1e-7
    assert float(metrics.report["importance"]) == pytest.approx(1, abs=1e-6)


def test_answers_to_one_prompt_share_its_forward_and_other_weights_compile_nothing(tmp_path: Path):
    """They are those of the same prompt several times, in every token and log-probability."""
    run = RolloutRun(config_of(tmp_path, 1), devices=jax.devices()[:1])
    generator = Generator(run.config, run.mesh, run.current_weights(), seed=3)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    together = generator.continued(prompts, 5, answers=4, first_number=10, sampling=DRAWN)
    apart = generator.continued([one for one in prompts for _ in range(4)], 5, first_number=10, sampling=DRAWN)
    assert len({tuple(one.tokens) for one in together}) > 2, "answers differ"
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-5)
    compiled = generator.programs.compiles
    generator.update(jax.tree.map(lambda x: 2 * x, run.current_weights()))
    changed = generator.continued(prompts, 5, answers=4, first_number=10, sampling=DRAWN)
    assert generator.programs.compiles == compiled
    assert not np.allclose(changed[0].log_probabilities[:1], together[0].log_probabilities[:1], atol=1e-3)


@pytest.mark.long
def test_a_run_that_is_continued_has_the_bits_of_one_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Prompts, draws and rewards of a step depend on the seed, the step and the weights alone."""
    judged: list[float] = []
    monkeypatch.setattr(AnomalyMonitor, "loss", lambda self, loss: judged.append(loss))
    recorder = Recorder()
    whole = Trainer(config_of(tmp_path / "whole", 4, evaluation={"batches": 1}), devices=jax.devices()[:1])
    whole.fit([recorder])
    first = Trainer(config_of(tmp_path / "parts", 2), devices=jax.devices()[:1])
    first.fit([])
    second = Trainer(config_of(tmp_path / "parts", 4), devices=jax.devices()[:1])
    second.fit([])
    assert second.steps_done == 4
    source = open_source(str(tmp_path / "parts" / second.config.run.name), "--model")
    text = text_of(source, None, lambda _: None)
    assert text.decode(text.encode("12:5,3=")) == "12:5,3=" and text.stops == [second.data.separator]
    assert_same_bits(jax.device_get(second.state.master), jax.device_get(whole.state.master))
    assert judged == [], "a loss of rewards is about 0, whatever happens"
    metrics = recorder.records[-1].metrics
    assert metrics is not None and metrics["effective_samples"] == pytest.approx(1, abs=1e-6)
    assert {"reward", "answer_tokens", "truncated", "left_out", "entropy", "eval_reward", "eval_success"} <= {*metrics}
    for one in (whole, first, second):
        one._run.rewarder.close()


def test_an_evaluation_without_any_reward_has_no_loss(tmp_path: Path):
    """The run goes on, and says so; answers are shown all the same."""
    (tmp_path / "none.py").write_text(
        "def none(prompts, completions, **columns):\n    return [None if len(prompts) == 1 else 1.0] * len(prompts)\n"
    )
    config = config_of(
        tmp_path, 1, rl={"rewards": {f"{tmp_path}/none.py:none": 1.0}}, evaluation={"batches": 1, "every": 1}
    )
    trainer, recorder = Trainer(config, devices=jax.devices()[:1]), Recorder()
    trainer.fit([recorder])
    assert any("this step is not evaluated" in text for text in recorder.messages) and recorder.evaluations == []
    assert trainer._run.samples and trainer._run.samples[0][1].endswith("(reward nan)")
    with refused("evaluation", "expected a reward"):
        trainer.evaluate()
    trainer._run.rewarder.close()


def test_an_evaluation_of_no_batches_is_refused(tmp_path: Path):
    trainer = Trainer(config_of(tmp_path, 1, evaluation={"batches": 0}), devices=jax.devices()[:1])
    with refused("evaluation.batches: 0", "expected at least 1"):
        trainer.evaluate()


def test_rewards_are_reported_by_the_source_of_their_prompts():
    """Where prompts have a column of that name."""
    prompts = [Prompt((1,), {"prompt": "a", "source": source}) for source in ("sums", "names")]
    answers = [Answer(prompt, (1, 2), np.zeros(2), True) for prompt in prompts for _ in range(2)]
    rollouts = Rollouts(0, 0, answers, np.array([[0.0, 1], [np.nan, 4]]), 2.0, 1.0, 0.5)
    metrics = Experience(rollouts, np.zeros((2, 2)), [], None).metrics()
    assert metrics["reward_of_sums"] == 0.5 and metrics["reward_of_names"] == 4
    assert metrics["drawn_tokens_per_second"] == 4 and metrics["sampler_wait_seconds"] == 0.5


@pytest.mark.long(always=True)
def test_the_shipped_configuration_learns(tmp_path: Path):
    """First the length of answers; three seeds had a reward of about 0.3 after 100 of its 1,600 steps."""
    run = RolloutRun("configs/grpo_digits.yaml", overrides=[f"run.dir={tmp_path}"], devices=jax.devices()[:1])
    with closing(run.rewarder):
        seen = []
        for _ in range(100):
            run.step()
            seen.append(run.last_metrics)
    mean = lambda name, steps: np.mean([one[name] for one in steps])
    assert mean("reward", seen[:5]) < 0.1 and mean("reward", seen[-10:]) > 0.25
    assert mean("truncated", seen[:5]) > 0.3 and mean("truncated", seen[-10:]) < 0.2


@pytest.mark.long
def test_a_penalty_keeps_the_model_near_its_reference(tmp_path: Path):
    """The reference is the model at the beginning: k3 is 0 in the first step and not in the third."""
    begin = Trainer(config_of(tmp_path, 1, run={"name": "begin"}), devices=jax.devices()[:1])
    begin.fit([])
    policy = PolicyConfig(kl="k3")
    start = {"init_from": str(tmp_path / "begin"), "name": "next"}
    run = RolloutRun(config_of(tmp_path, 3, policy, run=start), devices=jax.devices()[:1])
    kl = [float(run.step().report["kl"]) for _ in range(3)]
    assert abs(kl[0]) < 1e-6 < kl[2]
    assert run._reference is not None
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(run._reference.model.weights))
    assert run.memory.reference == held and "a reference of" in run.memory.words()
    run.rewarder.close()
    begin._run.rewarder.close()


def test_what_cannot_be_is_refused(tmp_path: Path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    (tmp_path / "odd.jsonl").write_text('{"prompt": "a"\n')
    (tmp_path / "none.py").write_text("def prompts():\n    return []\n")
    (tmp_path / "fails.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "raises.py").write_text("def prompts():\n    raise ValueError('no network')\n")
    for changes, parts in (
        ({"rl": {"group": 1}}, ("rl.group: 1", "at least 2")),
        ({"rl": {"answer_tokens": 40}}, ("data.sequence_length: 32", "40", "at least")),
        ({"data": {"batch_size": 4}}, ("data.batch_size: 4", "16 answers", "at least 8")),
        ({"rl": {"rewards": {f"{tmp_path}/none.py:reward": 1.0}}}, ("rl.rewards", "no function 'reward'", "prompts")),
        ({"data": {"path": "digit"}}, ("data.path", "digit", "did you mean digits")),
        ({"data": {"path": str(tmp_path / "bad.jsonl")}}, ("data.path", "record 2", "prompt")),
        ({"data": {"path": str(tmp_path / "odd.jsonl")}}, ("data.path", "line 1", "JSON")),
        ({"data": {"path": str(tmp_path / "none.py:prompts")}}, ("data.path", "no prompts")),
        ({"data": {"path": str(tmp_path / "none.py:prompt")}}, ("data.path", "prompt", "did you mean prompts")),
        ({"data": {"path": str(tmp_path / "fails.py:prompts")}}, ("data.path", "ModuleNotFoundError")),
        ({"data": {"source": "synthetic", "path": None}}, ("loss.name: grpo", "synthetic", "prompts")),
        ({"loss": "cross_entropy"}, ("loss.name: cross_entropy", "data.source: prompts", "grpo")),
        ({"policy": PolicyConfig(kl="k1")}, ("loss.policy.kl: k1", "loss.reference", "run.init_from")),
        ({"model": {"vocab": 8}}, ("model.vocab: 8", "at least 14")),
        ({"data": {"packed": False}}, ("data.packed: false", "true")),
        ({"data": {"path": str(tmp_path / "raises.py:prompts")}}, ("data.path", "ValueError", "no network")),
        ({"data": {"prefetch": 0}}, ("data.prefetch: 0", "expected 2")),
        ({"data": {"end_token": "<e>"}}, ("data.end_token: '<e>'", "data.tokenizer is null")),
        ({"watch": {"on_spike": "rollback"}}, ("watch.on_spike: rollback", "report")),
        (
            {"model": {"position": "learned", "max_positions": 32}, "rl": {"answer_tokens": 26}},
            ("model.max_positions: 32", "26 (rl.answer_tokens)"),
        ),
        ({"rl": {"minibatches": 3}}, ("rl.minibatches: 3", "4 prompts", "divisor")),
        ({"rl": {"staleness": 2}}, ("rl.staleness: 2", "rl.mode: sync", "null")),
        ({"rl": {"staleness": 2, "mode": "one_step_off"}}, ("rl.staleness: 2", "one_step_off", "null")),
        ({"rl": {"mode": "async"}}, ("rl.staleness: null", "rl.mode: async", "from 1")),
        ({"rl": {"sampler": SamplerConfig(devices=1)}}, ("rl.sampler.devices: 1", "overlap in part", "1 device")),
        ({"rl": {"sampler": SamplerConfig(tensor=2)}}, ("rl.sampler: ", "2")),
        ({"policy": PolicyConfig(kl_weight=0.1)}, ("loss.policy.kl_weight: 0.1", "null")),
        ({"policy": PolicyConfig(dual=0.5)}, ("loss.policy.dual: 0.5", "above 1")),
    ):
        with refused(*parts):
            RolloutRun(config_of(tmp_path, 1, **changes), devices=jax.devices()[:1])
    run = config_of(tmp_path, 1).run
    assert run.dir is not None and not (Path(run.dir) / run.name).exists(), "refused before anything is written"
    for parallel, sampler, words in (({"fsdp": 4}, 4, "overlap in part"), ({"fsdp": 2}, 2, "not all of")):
        config = config_of(tmp_path, 1, parallel=parallel, rl={"sampler": SamplerConfig(devices=sampler)})
        with refused(f"rl.sampler.devices: {sampler}", words, "the job's 6 devices"):
            RolloutRun(config, devices=jax.devices()[:6])
    with refused("loss.name: grpo", "loss of tokens"):
        sweep_rates(config_of(tmp_path, 1), low=1e-4, high=1e-2, steps=100, progress=lambda *_: None)
    with refused("rl.group: 4", "data.source is synthetic", "prompts"):
        RolloutRun(replace(small(), rl=RlConfig(group=4)), devices=jax.devices()[:1])


def test_a_run_without_any_reward_ends_at_its_first_step(tmp_path: Path):
    (tmp_path / "none.py").write_text("def none(prompts, completions, **columns):\n    raise OSError('nowhere')\n")
    rewards = {f"{tmp_path}/none.py:none": 1.0}
    run = RolloutRun(config_of(tmp_path, 1, rl={"rewards": rewards}), devices=jax.devices()[:1])
    with closing(run.rewarder), pytest.raises(TrainingError, match="nowhere"):
        next(run.batches_from(0))


def test_the_reward_that_failed_is_named_where_conversations_have_no_failure(tmp_path: Path):
    (tmp_path / "none.py").write_text("def none(prompts, completions, **columns):\n    raise OSError('nowhere')\n")
    rl = {"rewards": {f"{tmp_path}/none.py:none": 1.0}, "environment": "guess", "turns": 2, "answer_tokens": 4}
    run = RolloutRun(config_of(tmp_path, 1, data={"path": "guess"}, rl=rl), devices=jax.devices()[:1])
    with closing(run), pytest.raises(TrainingError, match="nowhere"):
        next(run.batches_from(0))


def test_what_runs_beside_the_steps_ends_with_the_loop(tmp_path: Path):
    """The sampler's thread, and the processes of a reward and the environment."""
    rl = {
        "rewards": {"exact": 1.0}, "environment": "guess", "turns": 2, "answer_tokens": 4,
        "sampler": SamplerConfig(devices=1),
    }  # fmt: skip
    config = config_of(tmp_path, 1, data={"path": "guess"}, rl=rl)
    trainer = Trainer(config, devices=jax.devices()[:2])
    run = trainer._run
    assert isinstance(run, RolloutRun) and run.conversations is not None
    trainer.fit([])
    workers = [run.conversations._worker, *(one._worker for one in run.rewarder.processes)]
    assert len(workers) == 2 and all(one._process.poll() is not None for one in workers)
    assert [one.name for one in threading.enumerate() if one.name.startswith("sampler")] == []
