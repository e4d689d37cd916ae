"""Jobs of several processes that learn from answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.observe.writers.jsonl import JsonLines, read_metrics
from jaxpar.rl.run import RolloutRun
from jaxpar.training.run.trainer import Trainer
from tests.rl.runs import config_of
from tests.training.run.test_processes import outputs, start_job
from tests.training.runs import folder_of

APART: dict[str, tuple[dict[str, Any], SamplerConfig]] = {
    "shards to tensor": ({"fsdp": 4, "zero": 3}, SamplerConfig(devices=4, tensor=2)),
    "tensor to rows": ({"fsdp": 2, "tensor": 2}, SamplerConfig(devices=4)),
}


def numbers_of(config: Config) -> dict[str, list[float]]:
    """By name, what a run recorded of its steps."""
    records = read_metrics(folder_of(config) / "metrics.jsonl")
    names = "answer_tokens", "entropy", "mismatch_kl", "reward", "staleness", "eval_reward"
    found = {name: [one["metrics"][name] for one in records if name in one["metrics"]] for name in names}
    return found | {"grad_norm": [one["grad_norm"] for one in records]}


@pytest.mark.long
@pytest.mark.parametrize("case", APART)
def test_two_processes_learn_as_one_where_a_part_of_the_devices_of_each_draws(tmp_path: Path, case: str):
    parallel, sampler = APART[case]
    sections: dict[str, Any] = {
        "parallel": parallel, "rl": {"mode": "one_step_off", "sampler": sampler}, "data": {"batch_size": 8},
        "evaluation": {"every": 2, "batches": 1}, "checkpoint": {"every": 2},
    }  # fmt: skip
    one, two = (config_of(tmp_path / name, 4, **sections) for name in ("one", "two"))
    trainer = Trainer(one, devices=jax.devices()[:8])
    trainer.fit([JsonLines()])
    assert isinstance(trainer._run, RolloutRun)
    trainer._run.rewarder.close()
    done = outputs(start_job(two, tmp_path / "two.yaml", 2))
    assert [code for code, _, _ in done] == [0, 0], done
    wanted, found = numbers_of(one), numbers_of(two)
    assert wanted["staleness"] == [0, 1, 1, 1] and len(wanted["eval_reward"]) == 2
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values, rel=1e-4, abs=1e-6), name
