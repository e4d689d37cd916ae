"""Runs on islands: they continue with the same bits, and all that reads their weights reads the global ones."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.convert import main
from jaxpar.interop.sources.open_source import open_source
from jaxpar.layout.islands import ISLAND_WEIGHTS
from jaxpar.training.run.trainer import Trainer
from tests.same_bits import assert_same_bits
from tests.training.runs import SharingTrainer, fit, folder_of, losses, run_config, saved_state

ISLANDS: dict[str, Any] = {"every": 4, "fragments": 2, "delay": 1}
ON_HOST: dict[str, Any] = {"every": 2, "eager": True, "offload": "host"}


def config_of(to: Path, steps: int, islands: dict[str, Any] = ISLANDS, **sections: Any) -> Config:
    return run_config(
        to, steps, model={"layers": 2, "vocab": 61}, parallel={"islands": 2}, islands=islands,
        checkpoint={"every": 2, "keep_last": 9}, **sections,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("islands", [ISLANDS, ON_HOST], ids=["on the devices", "on the host"])
def test_a_run_goes_on_with_the_same_bits_though_a_message_was_due(tmp_path: Path, islands: dict[str, Any]):
    """After step 2 the outer gradient of a fragment is taken, and travels beside step 3."""
    config = config_of(tmp_path, 6, islands, evaluation={"batches": 1, "sample_tokens": 4})
    _, recorder = fit(config)
    trainer = SharingTrainer.from_checkpoint(folder_of(config) / "checkpoints/00000002", devices=jax.devices()[:2])
    (kind,) = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(trainer.state.master)}
    assert (kind == "pinned_host") == (islands == ON_HOST)
    found = [float(trainer.step().loss) for _ in range(4)]
    assert found == [losses(config)[step] for step in range(3, 7)]
    assert_same_bits(jax.device_get(trainer.state.optimizer), saved_state(config, 6).optimizer)
    assert_same_bits(jax.device_get(trainer.state.master), saved_state(config, 6).master)
    assert recorder.evaluations[-1][1] == pytest.approx(trainer.evaluate(), rel=1e-6)


@pytest.mark.long
def test_checkpoints_evaluations_and_other_runs_have_the_global_weights(tmp_path: Path):
    config = config_of(tmp_path, 6, evaluation={"batches": 2})
    _, recorder = fit(config)
    saved = saved_state(config, 6)
    shared, islands = (jax.tree.leaves(tree) for tree in (saved.master, saved.optimizer[ISLAND_WEIGHTS]))
    assert any((own != one).any() for one, own in zip(shared, islands, strict=True))
    alone = Trainer(
        run_config(tmp_path, 1, model={"layers": 2, "vocab": 61}, evaluation={"batches": 2},
                   run={"init_from": str(folder_of(config)), "name": "alone"}),
        devices=jax.devices()[:1],
    )  # fmt: skip
    assert_same_bits(jax.device_get(alone.state.master), saved.master)
    assert alone.evaluate() == pytest.approx(recorder.evaluations[-1][1], rel=1e-6)
    assert open_source(folder_of(config), "MODEL").location.name == "00000006"
    assert main(["jaxpar-to-hf", str(folder_of(config)), str(tmp_path / "hf")]) == 0


@pytest.mark.long
def test_islands_begin_with_the_weights_of_another_model(tmp_path: Path):
    config = run_config(tmp_path, 2, model={"layers": 2, "vocab": 61})
    fit(config)
    started = config_of(tmp_path, 5, run={"init_from": str(folder_of(config)), "name": "islands"})
    state = Trainer(started, devices=jax.devices()[:2]).state
    assert_same_bits(jax.device_get(state.master), saved_state(config, 2).master)
    each = jax.tree.map(lambda one: np.stack([one] * 2), jax.device_get(state.master))
    assert_same_bits(jax.device_get(state.optimizer[ISLAND_WEIGHTS]), each)
