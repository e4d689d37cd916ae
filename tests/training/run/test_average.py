"""The moving average of the weights in a whole run: saved, restored, evaluated, turned on and off."""

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.memory.disk_array import DiskArray
from jaxpar.training.run.continuing import continue_tokens
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.training.runs import MESH, fit, losses, make_run, run_config, saved_state

AVERAGED: dict[str, Any] = {"parallel": MESH, "optimizer": {"ema": 0.9}}


def averaged(folder: Path, steps: int, **sections: Any) -> Config:
    return run_config(folder, steps, **{**AVERAGED, **sections})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Six steps that were never interrupted."""
    config = averaged(tmp_path_factory.mktemp("whole"), 6)
    fit(config)
    return config


@pytest.mark.long
def test_a_continued_run_has_the_average_of_the_uninterrupted_one_bit_for_bit(tmp_path: Path, whole: Config):
    fit(averaged(tmp_path, 3))
    config = averaged(tmp_path, 6)
    fit(config)
    assert losses(config) == losses(whole)
    found, wanted = saved_state(config, 6), saved_state(whole, 6)
    assert_same_bits(found, wanted)
    assert np.abs(found.optimizer["average"]["head"]["weight"] - found.master["head"]["weight"]).max() > 1e-3


@pytest.mark.long
def test_evaluation_uses_the_average_where_it_is_asked_to(tmp_path: Path):
    evaluation = {"batches": 1, "sample_tokens": 2}
    config = averaged(tmp_path, 3, evaluation={**evaluation, "ema": True})
    summary, _ = fit(config)
    trainer = make_run(averaged(tmp_path, 3, evaluation=evaluation))
    state = trainer.layout.abstract_state(trainer.mesh)
    saved = jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), saved_state(config, 3), state)
    trainer.state = saved
    of_weights = trainer.evaluate()
    trainer.state = saved._replace(master=saved.optimizer["average"])
    assert summary.eval_loss == trainer.evaluate() != of_weights


@pytest.mark.long
def test_an_average_on_disk_is_read_once_for_an_evaluation_and_once_for_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sections = {"memory": {"optimizer_offload": "file"}, "evaluation": {"batches": 3, "ema": True}}
    trainer = make_run(averaged(tmp_path, 3, **sections, parallel={}))
    arrays = jax.tree.leaves(trainer.state.optimizer["average"])
    assert all(isinstance(array, DiskArray) for array in arrays)
    rows: Counter[int] = Counter()

    def counted(array: DiskArray, first: int, count: int, read: Any = DiskArray.read) -> Any:
        rows[id(array)] += count
        return read(array, first, count)

    monkeypatch.setattr(DiskArray, "read", counted)
    once = {id(array): array.shape[0] for array in arrays}
    trainer.evaluate()
    assert rows == once
    rows.clear()
    assert len(continue_tokens(trainer, np.array([1, 2]), 4, 0.0)) == 4
    assert rows == once


@pytest.mark.long
def test_an_average_that_is_turned_on_later_begins_with_the_weights_of_that_step(tmp_path: Path):
    fit(run_config(tmp_path, 3, parallel=MESH))
    before = saved_state(run_config(tmp_path, 3, parallel=MESH), 3)
    config = averaged(tmp_path, 4)
    _, recorded = fit(config)
    assert recorded.messages[:2] == [
        "The moving average of the weights begins with those of step 3.",
        "Continuing with changes: run.steps: 3 -> 4; optimizer.ema: null -> 0.9.",
    ]
    after = saved_state(config, 4)
    decay = (1 + 3) / (10 + 3)
    wanted = decay * before.master["head"]["weight"] + (1 - decay) * after.master["head"]["weight"]
    np.testing.assert_allclose(after.optimizer["average"]["head"]["weight"], wanted, rtol=1e-5, atol=1e-7)


def test_an_average_that_is_turned_off_is_dropped(tmp_path: Path, whole: Config):
    fit(averaged(tmp_path, 3))
    config = run_config(tmp_path, 6, parallel=MESH)
    _, recorded = fit(config)
    assert "optimizer.ema: 0.9 -> null" in recorded.messages[0]
    assert losses(config) == losses(whole)
    assert saved_state(config, 6).optimizer.get("average") is None


def test_evaluating_an_average_that_is_not_kept_is_refused(tmp_path: Path):
    with refused("evaluation.ema: true", "optimizer.ema is null"):
        make_run(run_config(tmp_path, 3, evaluation={"ema": True}))
