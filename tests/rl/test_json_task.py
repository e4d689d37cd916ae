"""The shipped configurations of JSON: a short fine-tuning, and the rewards that choose among what it has shown."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpar.rl.run import RolloutRun
from jaxpar.training.run.trainer import Trainer


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_the_shipped_configurations_learn(tmp_path: Path):
    """One in five demonstrations is right, and no answer before rewards is; `docs/reinforcement.md` has three seeds."""
    folder = f"run.dir={tmp_path}"
    Trainer("configs/grpo_json_sft.yaml", overrides=[folder], devices=jax.devices()[:1]).fit([])
    begin = f"run.init_from={tmp_path}/grpo_json_sft"
    run = RolloutRun("configs/grpo_json.yaml", overrides=[folder, begin], devices=jax.devices()[:1])
    with closing(run.rewarder):
        before, rewards = run.evaluation(), []
        for _ in range(run.config.run.steps):
            run.step()
            rewards.append(run.last_metrics["reward"])
        after = run.evaluation()
    assert before["success"] < 0.4 and after["success"] > 0.9
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.3
