"""What takes its time in a run is no part of a step to the watch over its processes, and is given time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxpar.checkpoint import Checkpointer
from jaxpar.distributed import liveness
from jaxpar.observe.profile import ProfileWindow
from jaxpar.training.monitor import anomaly_monitor as anomaly_monitor
from jaxpar.training.run.run import Run
from jaxpar.training.run_folder.saves import Saves
from tests.training.monitor.test_anomaly_monitor import ROLLBACK, fit_with, poisoned, scrambled, watched
from tests.training.runs import Recorder, make_trainer, run_config


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[tuple[str, bool]]]:
    """`places(owner, name)`: from now on, where the main thread is, and whether in a step, when that is called."""
    now = [("", False)]
    monkeypatch.setattr(
        liveness, "report_activity", lambda where, *, in_step=False, busy=False: now.append((where, in_step))
    )

    def follow(owner: Any, name: str) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        call = getattr(owner, name)

        def note(*arguments: Any, **options: Any) -> Any:
            found.append(now[-1])
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, note)
        return found

    return follow


def test_evaluations_saves_and_profiles_are_pauses(tmp_path: Path, places: Callable[..., list[tuple[str, bool]]]):
    steps, evaluations = places(Run, "step"), places(Run, "evaluation")
    saves, profiles = places(Saves, "begin"), places(ProfileWindow, "close")
    config = run_config(
        tmp_path, 5, run={"profile": "2:3"}, evaluation={"batches": 1, "every": 2}, checkpoint={"every": 4}
    )
    make_trainer(config).fit([Recorder()])
    assert steps == [(f"in step {step}", True) for step in range(1, 6)]
    assert evaluations == [(f"evaluating after step {step}", False) for step in (2, 4, 5)]
    assert saves == [(f"saving step {step}", False) for step in (4, 5)]
    assert profiles[0] == ("writing a profile", False)


@pytest.mark.long
def test_a_look_into_a_broken_step_and_a_rollback_are_pauses(
    tmp_path: Path, places: Callable[..., list[tuple[str, bool]]]
):
    looks, restores, waits = (
        places(anomaly_monitor, "broken_gradients"),
        places(Saves, "restore"),
        places(Checkpointer, "wait"),
    )
    restarts = places(liveness, "restarted")
    change = lambda batch, rows: scrambled(14)(batch, poisoned((6,))(batch, rows))
    recorded = fit_with(watched(tmp_path, 15, **ROLLBACK), change)
    assert [anomaly.kind for anomaly in recorded.anomalies] == ["not_finite", "loss_spike"]
    assert looks == [("looking into step 6", False)]
    assert restores == [("restoring a checkpoint", False)] * 2
    assert restarts == [("restoring a checkpoint", False)]
    assert not any(in_step for _, in_step in waits)
