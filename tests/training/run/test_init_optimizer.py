"""A new run may go on from the state of another, optimizer and step included, with another configuration."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxpar.checkpoint.errors import CheckpointError
from jaxpar.config.schema.training import RampPart
from jaxpar.config.validate import validate
from jaxpar.observe.writers.event_log import EVENTS_FILE, EventLog
from jaxpar.observe.writers.jsonl import JsonLines
from tests.sentences import refused
from tests.small_run import small
from tests.training.runs import Recorder, fit, folder_of, losses, make_run, make_trainer, run_config


@pytest.mark.long
def test_a_run_goes_on_from_the_optimizer_of_another(tmp_path: Path):
    first = run_config(tmp_path / "first", 3)
    fit(first)
    run = {"init_from": str(folder_of(first)), "init_optimizer": True}
    other = run_config(tmp_path / "other", 5, run=run)
    _, recorded = fit(other, EventLog())
    assert any("goes on after step 3" in message for message in recorded.messages)
    assert "goes on after step 3" in (folder_of(other) / EVENTS_FILE).read_text()
    fit(replace(first, run=replace(first.run, steps=5)))
    continued = losses(first)
    assert losses(other) == {step: continued[step] for step in (4, 5)}

    # Batches twice as large, of the rows that come next.
    ramp: dict[str, Any] = {"batch_size": 16, "batch_ramp": (RampPart(8, steps=3),)}
    larger = run_config(
        tmp_path / "larger", 5, data=ramp, run=run | {"init_from": f"{folder_of(first)}/checkpoints/00000003"}
    )
    batch, _ = next(make_run(larger).batches_from(3))
    assert sorted(batch["examples"].ravel().tolist()) == [*range(24, 40)]
    _, recorded = fit(larger)
    assert any("data.batch_size: 8 -> 16" in message for message in recorded.messages)
    fit(replace(larger, run=replace(larger.run, steps=6)))
    assert list(losses(larger)) == [4, 5, 6], "a killed run goes on from its checkpoints"

    # Sizes of batches whose steps are over are not checked.
    past: dict[str, Any] = {"batch_size": 16, "batch_ramp": (RampPart(4, steps=3),)}
    wide = make_run(run_config(tmp_path / "wide", 6, data=past, parallel={"fsdp": 8}, run=run))
    assert wide.state.step == 5 and not wide._smaller

    # A state that was looked at before is reported too, and with another seed the data is another.
    trainer = make_trainer(run_config(tmp_path / "seed", 6, run=run | {"seed": 1}))
    assert trainer.state.step == 5
    recorded = Recorder()
    trainer.fit([JsonLines(), recorded])
    assert len([text for text in recorded.messages if "run.seed: 0 -> 1" in text and "does not go on" in text]) == 1
    assert not any("checkpoint is of step" in text for text in recorded.messages)
    with pytest.raises(CheckpointError, match="optimizer/"):
        fit(run_config(tmp_path / "lion", 9, optimizer={"name": "lion"}, run=run))
    with refused("run.init_optimizer", "of step 5", "run.steps is 4"):
        fit(run_config(tmp_path / "short", 4, run=run))


def test_an_optimizer_of_no_run_is_refused():
    with refused("run.init_optimizer: true", "run.init_from"):
        validate(small(run={"init_optimizer": True}))
