"""Code and servers that a plan or a checkpoint names are refused until they are named again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import pytest

from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.config.schema.reinforcement import RlConfig
from jaxpar.config.user_code import refuse_stored_code
from jaxpar.training.run.trainer import Trainer
from tests.rl.runs import config_of
from tests.sentences import refused
from tests.small_run import small


def test_stored_code_is_refused_until_it_is_named_again():
    config = replace(small(), rl=RlConfig(rewards={"exact": 1.0, "a.py:f": 1.0}))
    with refused("rl.rewards: 'a.py:f'", "the plan", "--set rl.rewards"):
        refuse_stored_code(config, ["data.path=b.py:g"], "the plan")
    refuse_stored_code(config, ["rl.rewards={a.py:f: 1.0}"], "the plan")
    for rl, key in ((RlConfig(environment="a.py:F"), "rl.environment"), (RlConfig(tools=("b", "a.py:f")), "rl.tools")):
        with refused(key, "a.py", "the plan", f"--set {key}"):
            refuse_stored_code(replace(small(), rl=rl), [], "the plan")


def test_a_stored_server_is_refused_until_it_is_named_again():
    """It would get the prompts, and its folder the weights."""
    url = "http://192.0.2.1:8000"
    config = replace(small(), rl=RlConfig(sampler=SamplerConfig(url=url, folder="/a")))
    with refused(f"rl.sampler.url: '{url}'", "the checkpoint", "prompts", "--set rl.sampler.url"):
        refuse_stored_code(config, ["rl.sampler.folder=weights"], "the checkpoint")
    with refused("rl.sampler.folder: '/a'", "the checkpoint", "weights", "--set rl.sampler.folder"):
        refuse_stored_code(config, [f"rl.sampler.url={url}"], "the checkpoint")
    refuse_stored_code(config, [f"rl.sampler.url={url}", "rl.sampler.folder=weights"], "the checkpoint")
    keyed = replace(config, rl=RlConfig(sampler=SamplerConfig(url=url, folder="/a", key_file="/b")))
    with refused("rl.sampler.key_file: '/b'", "the checkpoint", "contents", "--set rl.sampler.key_file"):
        refuse_stored_code(keyed, [f"rl.sampler.url={url}", "rl.sampler.folder=weights"], "the checkpoint")


@pytest.mark.long
def test_code_that_a_checkpoint_names_is_not_run(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("def prompts():\n    return [{'prompt': '1', 'answer': '1'}] * 4\n")
    data = {"path": f"{file}:prompts"}
    trainer = Trainer(
        config_of(tmp_path, 1, data=data, rl={"rewards": {"exact": 1.0}}, model={"vocab": 257}),
        devices=jax.devices()[:1],
    )
    trainer.fit([])
    file.write_text("raise SystemExit('this file was run')\n")
    folder = Path(trainer.config.run.dir) / trainer.config.run.name
    with refused("data.path", "mine.py:prompts", "code", "--set data.path"):
        Trainer.from_checkpoint(folder, devices=jax.devices()[:1])
    trainer._run.rewarder.close()
