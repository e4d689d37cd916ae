"""Answers that are drawn ahead, learned from several times, or drawn on a separate mesh."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config.mappings.policy import PRESETS, Policy
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.rl.run import RolloutRun
from jaxpar.training.run.trainer import Trainer
from tests.rl.policy64 import answer_loss
from tests.rl.runs import config_of, devices_of, log_probabilities64
from tests.same_bits import assert_same_bits
from tests.training.damage.test_kill import finish, killed_after
from tests.training.runs import MESH, Recorder, run_config, saved_state, write_config


def recorded(run: RolloutRun) -> list[dict[str, np.ndarray]]:
    """The rows of the steps that the run takes from here on."""
    made: list[dict[str, np.ndarray]] = []
    draw = run._batch
    run._batch = lambda step: made.append(draw(step)) or made[-1]  # pyright: ignore
    return made


def loss64(p: np.ndarray, q: np.ndarray, rows: dict[str, np.ndarray], policy: Policy) -> tuple[float, int]:
    """The loss of rows by hand, from log-probabilities now and before, and the tokens at a limit."""
    total, clipped, answer = 0.0, 0, rows["mask"] > 0
    for row, segments in enumerate(rows["segments"]):
        for document in range(1, segments.max() + 1):
            here = np.flatnonzero((segments == document) & answer[row])
            s, a = rows["sampled"][row, here].astype(np.float64), float(rows["advantage"][row, here[0]])
            loss, slope = answer_loss(p[row, here], q[row, here], s, np.zeros(len(here)), a, asdict(policy))
            total += (rows["weight"][row, here] * loss).sum()
            clipped += int((slope == 0).sum()) if a else 0
    return total / answer.sum(), clipped


@pytest.mark.long
def test_two_updates_from_one_batch_of_answers_equal_float64(tmp_path: Path):
    """At a temperature, in two epochs: the second step has ratios relative to the weights before the first."""
    rl = {"epochs": 2, "temperature": 1.7, "answer_tokens": 6}
    config = config_of(tmp_path, 4, rl=rl, optimizer={"learning_rate": 0.1, "warmup_steps": 0})
    run, policy = RolloutRun(config, devices=jax.devices()[:1]), PRESETS["grpo"]
    with closing(run.rewarder):
        rows, before = recorded(run), np.zeros(0)
        for step in range(2):
            weights = jax.device_get(run.current_weights())
            metrics = run.step()
            p, answer = log_probabilities64(run, weights, rows[step], 1.7), rows[step]["mask"] > 0
            if step == 0:
                before = p
                np.testing.assert_allclose(rows[0]["sampled"][answer], p[answer], atol=1e-5)
                assert np.isnan(rows[0]["before"][answer]).all()
            else:
                np.testing.assert_array_equal(rows[1]["tokens"], rows[0]["tokens"])
                np.testing.assert_allclose(rows[1]["before"][answer], before[answer], atol=1e-5)
            wanted, clipped = loss64(p, before, rows[step], policy)
            assert float(metrics.loss) == pytest.approx(wanted, abs=1e-5)
            assert float(metrics.report["clipped"]) == pytest.approx(clipped / answer.sum())
            assert (clipped > 0) == (step > 0)
            assert float(metrics.report["entropy"]) == pytest.approx(-p[answer].mean(), rel=1e-5)


def test_minibatches_are_parts_of_a_batch_by_prompts(tmp_path: Path):
    """Each epoch has all answers once; answers of the later parts have ratios relative to the weights before all."""
    config = config_of(tmp_path, 4, rl={"epochs": 2, "minibatches": 2}, data={"batch_size": 8})
    run = RolloutRun(config, devices=jax.devices()[:1])
    with closing(run.rewarder):
        steps = [run._batch(step) for step in range(5)]
    assert [np.isnan(one["before"]).any() for one in steps] == [True, False, False, False, True]
    tokens = [one["tokens"].tolist() for one in steps]
    assert tokens[:2] == tokens[2:4] and tokens[0] != tokens[1] and tokens[4] not in tokens[:4]
    assert [one["segments"].any(axis=1).sum() for one in steps[:4]] == [4] * 4, "8 answers, two in a row"
    assert run.epochs(4) == run.epochs(1) and run.epochs(5) == run.epochs(8) != run.epochs(4)


CONTINUED: dict[str, dict[str, Any]] = {
    "one step off": {"rl": {"mode": "one_step_off"}},
    "asynchronous, within a batch": {
        "rl": {"mode": "async", "staleness": 2, "minibatches": 2, "epochs": 2}, "data": {"batch_size": 8},
    },
    "one step off, apart": {"rl": {"mode": "one_step_off", "sampler": SamplerConfig(devices=1)}},
    "another layout of the sampler": {"rl": {"mode": "async", "staleness": 3, "sampler": SamplerConfig(tensor=2)}},
}  # fmt: skip


@pytest.mark.matrix(quick=(), ci=1)
@pytest.mark.parametrize("case", CONTINUED)
def test_a_run_ahead_that_is_continued_has_the_bits_of_one_that_is_not(tmp_path: Path, case: str):
    """The checkpoint has the answers that wait, with their versions, and those of the batch under way."""
    sections, devices = CONTINUED[case], jax.devices()[: 2 if "sampler" in CONTINUED[case]["rl"] else 1]
    apart = sections["rl"].get("sampler", SamplerConfig()).devices or 0
    parallel = {"fsdp": len(devices) - apart}
    recorder = Recorder()
    of = lambda name, steps: Trainer(config_of(tmp_path / name, steps, parallel=parallel, **sections), devices=devices)
    whole, first, second = of("whole", 7), of("parts", 3), of("parts", 7)
    whole.fit([recorder])
    first.fit([])
    second.fit([])
    assert_same_bits(jax.device_get(second.state.master), jax.device_get(whole.state.master))
    metrics = [one.metrics or {} for one in recorder.records]
    per_batch = whole.config.rl.minibatches * whole.config.rl.epochs
    lag = whole.config.rl.staleness or 1
    assert [one["staleness"] for one in metrics] == [min(step // per_batch, lag) for step in range(7)]
    assert metrics[-1]["dropped"] == 0
    for one in (whole, first, second):
        assert isinstance(one._run, RolloutRun)
        one._run.rewarder.close()


APART: dict[str, dict[str, Any]] = {
    "tensor to tensor": {"parallel": {"fsdp": 2, "tensor": 2}, "rl": {"sampler": SamplerConfig(devices=4, tensor=4)}},
    "stages to rows": {"parallel": {"pipe": 2, "microbatches": 2}, "rl": {"sampler": SamplerConfig(devices=4)}},
    "one device to two": {"rl": {"sampler": SamplerConfig(devices=2)}},
    "shards to context": {
        "parallel": {"fsdp": 2, "zero": 3}, "rl": {"sampler": SamplerConfig(devices=2, context=2)},
    },
    "in turns": {"parallel": {"fsdp": 4, "zero": 3}, "rl": {"sampler": SamplerConfig(tensor=4)}},
}  # fmt: skip


@pytest.mark.matrix(quick=(), ci=2)
@pytest.mark.parametrize("case", APART)
def test_answers_of_another_mesh_have_the_log_probabilities_of_the_step(tmp_path: Path, case: str):
    """Within 1e-5 in float32, after an update too; the draws are those of one device."""
    sections = {name: dict(keys) for name, keys in APART[case].items()}
    sections["rl"] |= {"mode": "one_step_off"}
    config = config_of(tmp_path, 4, data={"batch_size": 8}, **sections)
    count = len(devices_of(config)) + (config.rl.sampler.devices or 0)
    run = RolloutRun(config, devices=jax.devices()[:count])
    with closing(run.rewarder), closing(run._buffer):
        rows, weights = recorded(run), []
        for _ in range(3):
            weights.append(jax.device_get(run.current_weights()))
            run.step()
    for batch, version in zip(rows, (0, 0, 1), strict=True):
        p, answer = log_probabilities64(run, weights[version], batch, 1.0), batch["mask"] > 0
        assert answer.sum() > 16
        np.testing.assert_allclose(batch["sampled"][answer], p[answer], atol=1e-5)
    assert run.last_metrics["staleness"] == 1


@pytest.mark.long
def test_frozen_weights_on_the_devices_of_the_step_outlive_it(tmp_path: Path):
    """The step donates its state: what scores or draws on its devices, under LoRA, does so anew with each batch."""
    begin = Trainer(run_config(tmp_path, 1, run={"name": "begin"}), devices=jax.devices()[:1])
    begin.step()
    begin.save()
    start = {"init_from": str(tmp_path / "begin"), "name": "next"}
    rl = {"epochs": 2, "sampler": SamplerConfig(fsdp=1)}
    config = config_of(tmp_path, 4, run=start, lora={"rank": 2, "targets": ("query",)}, rl=rl)
    run = RolloutRun(config, devices=jax.devices()[:1])
    with closing(run.rewarder):
        rows = recorded(run)
        for _ in range(3):
            metrics = run.step()
    assert float(metrics.report["mismatch_kl"]) < 1e-6
    assert rows[0]["tokens"].tolist() == rows[1]["tokens"].tolist() != rows[2]["tokens"].tolist()


@pytest.mark.long
def test_weights_that_are_not_trained_are_moved_to_the_sampler_once(tmp_path: Path):
    """Under LoRA each version moves the factors alone, to each device of the sampler."""
    begin = Trainer(config_of(tmp_path, 1, run={"name": "begin"}), devices=jax.devices()[:1])
    begin.fit([])
    start = {"init_from": str(tmp_path / "begin"), "name": "next"}
    rl = {"mode": "one_step_off", "sampler": SamplerConfig(devices=2)}
    config = config_of(tmp_path, 3, run=start, lora={"rank": 2, "targets": ("query",)}, rl=rl)
    run, moved = RolloutRun(config, devices=jax.devices()[:3]), []
    with closing(run.rewarder), closing(run._buffer):
        for _ in range(3):
            run.step()
            moved.append(run._sampler.transfer.moved_bytes)
    size = lambda tree: 2 * sum(4 * leaf.size for leaf in jax.tree.leaves(tree))
    assert moved == [size(run.current_weights()), *[size(run.state.master)] * 2] and moved[1] < moved[0] / 10
    assert isinstance(begin._run, RolloutRun)
    begin._run.rewarder.close()


KILLED: dict[str, dict[str, Any]] = {
    "in turns": {"rl": {"mode": "async", "staleness": 2, "epochs": 2}, "parallel": MESH},
    "apart": {
        "rl": {"mode": "one_step_off", "epochs": 2, "sampler": SamplerConfig(devices=4)},
        "parallel": {"fsdp": 4},
    },
}


@pytest.mark.long
@pytest.mark.parametrize("case", KILLED)
def test_a_killed_run_ahead_goes_on_with_the_answers_of_its_checkpoint(tmp_path: Path, case: str):
    """Within a batch of answers: the same command makes the run that was never killed."""
    of = lambda name: config_of(tmp_path / name, 12, checkpoint={"every": 3}, **KILLED[case])
    killed, never = of("killed"), of("never")
    file = write_config(killed, tmp_path / "killed.yaml")
    assert killed_after(killed, file, lines=7, delay_s=0.0)
    assert "Continuing with step " in finish(file)
    finish(write_config(never, tmp_path / "never.yaml"))
    assert_same_bits(saved_state(killed, 12), saved_state(never, 12))
