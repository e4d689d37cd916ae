"""The shipped configuration of digits, to its last step."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import jax
import pytest

from jaxpar.rl.run import RolloutRun


@pytest.mark.release
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_shipped_configuration_learns_by_rewards_alone(tmp_path: Path, seed: int):
    """`docs/reinforcement.md` has the three seeds."""
    overrides = [f"run.dir={tmp_path}", f"run.seed={seed}"]
    run = RolloutRun("configs/grpo_digits.yaml", overrides=overrides, devices=jax.devices()[:1])
    with closing(run.rewarder):
        before = run.evaluation()
        for _ in range(run.config.run.steps):
            run.step()
        after = run.evaluation()
    assert before["success"] < 0.1 and after["success"] > 0.8
