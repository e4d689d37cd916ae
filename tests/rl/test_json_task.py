"""The shipped configurations of JSON: a short fine-tuning, and the rewards that choose among what it has shown."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpar.rl.run import RolloutRun
from jaxpar.training.run.trainer import Trainer


@pytest.mark.long
def test_the_shipped_configurations_learn(tmp_path: Path):
    """Demonstrations are right in one of five; three seeds had BEFORE before rewards and AFTER after 15 steps of 40."""
    folder = f"run.dir={tmp_path}"
    Trainer("configs/grpo_json_sft.yaml", overrides=[folder], devices=jax.devices()[:1]).fit([])
    begin = f"run.init_from={tmp_path}/grpo_json_sft"
    run = RolloutRun("configs/grpo_json.yaml", overrides=[folder, begin], devices=jax.devices()[:1])
    with closing(run.rewarder):
        before, rewards = run.evaluation(), []
        for _ in range(15):
            run.step()
            rewards.append(run.last_metrics["reward"])
        after = run.evaluation()
    assert before["success"] < 0.4 < after["success"]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.3
