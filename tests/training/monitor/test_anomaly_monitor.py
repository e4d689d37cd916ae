"""Anomalies that a run notices while it trains: injected spikes, infinities and slow loaders, each reported once."""

import json
from collections.abc import Callable, Container
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.data import Data
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.observe import pace, stragglers
from jaxpar.observe.events import Anomaly
from jaxpar.observe.timer import Turn
from jaxpar.observe.writers.event_log import EventLog
from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.training.errors import TrainingError
from jaxpar.training.monitor import anomaly_monitor as anomaly_monitor
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.training.late import Late
from tests.training.runs import MESH, Recorder, folder_of, losses, make_run, run_config, saved_state

type Rows = dict[str, np.ndarray]


class AnomalyRecorder(Recorder):
    """Records anomalies separately from messages."""

    def __init__(self) -> None:
        super().__init__()
        self.anomalies: list[Anomaly] = []
        self.rewinds: list[int] = []

    def anomaly(self, anomaly: Anomaly) -> None:
        self.anomalies.append(anomaly)

    def rewound(self, step: int) -> None:
        self.rewinds.append(step)


def fit_with(
    config: Config, change: Callable[[int, Rows], Rows], recorded: AnomalyRecorder | None = None
) -> AnomalyRecorder:
    """Fit with `change(batch number from 1, rows)` in place of the rows of each batch."""
    trainer = make_run(config)
    place = trainer.placer

    class Changed:
        def __getattr__(self, name: str) -> Any:
            return getattr(place, name)

        def __call__(self, rows: Rows) -> dict[str, jax.Array]:
            return place(change(int(rows["examples"][0]) // len(rows["examples"]) + 1, rows))

    trainer.placer = Changed()  # pyright: ignore[reportAttributeAccessIssue]
    recorded = recorded or AnomalyRecorder()
    trainer.fit([JsonLines(), EventLog(), recorded])
    return recorded


def scrambled(*numbers: int) -> Callable[[int, Rows], Rows]:
    """Batches with labels that nothing leads to: their loss jumps."""

    def change(number: int, rows: Rows) -> Rows:
        return {**rows, "labels": np.full_like(rows["labels"], 63)} if number in numbers else rows

    return change


def poisoned(steps: Container[int]) -> Callable[[int, Rows], Rows]:
    """Batches of which those of some steps have an infinity in the loss mask."""
    infinite = lambda rows: {**rows, "mask": np.where(rows["mask"] > 0, np.float32(np.inf), 0)}
    return lambda number, rows: infinite(rows) if number in steps else rows


QUIET = {"limits": {"slow_step": None, "slow_pace": None, "data_wait": None}}
"""Nothing is asserted of times, which others on this machine have a part in."""
SPIKES = {"limits": {"spike_window": 10, "spike": 4.0, **QUIET["limits"]}}


def watched(folder: Path, steps: int, **sections: Any) -> Config:
    """A run that learns quickly, with a window of ten losses."""
    return run_config(folder, steps, **{"parallel": MESH, "optimizer": {"ema": 0.9}, "watch": SPIKES, **sections})


ROLLBACK: dict[str, Any] = {
    "watch": {**SPIKES, "on_spike": "rollback", "skip_batches": 2, "max_rollbacks": 2},
    "checkpoint": {"every": 4, "keep_last": 9},
}


def events(config: Config, kind: str) -> list[dict[str, Any]]:
    lines = (folder_of(config) / "events.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == kind]


def test_a_spike_is_reported_once_and_stands_in_the_events(tmp_path: Path):
    config = watched(tmp_path, 20)
    recorded = fit_with(config, scrambled(12, 13))
    assert [(anomaly.kind, anomaly.step) for anomaly in recorded.anomalies] == [("loss_spike", 12)]
    assert recorded.anomalies[0].text.startswith("Loss spike at step 12: ")
    assert recorded.anomalies[0].text.endswith(" standard deviations above it); training goes on.")
    assert recorded.messages[-1] == "Some anomalies were not reported each time; in all: loss spikes 2."
    (line,) = events(config, "anomaly")
    assert (line["kind"], line["step"], line["losses"]) == ("loss_spike", 12, 10)
    assert line["loss"] == losses(config)[12]
    assert line["median"] == np.median([losses(config)[step] for step in range(2, 12)])


def test_slow_steps_on_a_busy_machine_are_reported_once_an_hour():
    recorded = AnomalyRecorder()
    monitor = anomaly_monitor.AnomalyMonitor(Config(), LayerOrder.from_chunks([0], [2]), recorded)
    for number in range(1, 1001):
        seconds = 9.0 if number % 150 == 0 else 0.1  # more than 100 quiet steps in between
        monitor.step(number, Turn(seconds, 0.0, 0.0, seconds))
    assert [(anomaly.kind, anomaly.step) for anomaly in recorded.anomalies] == [("slow_step", 150)]
    monitor.sum_up()
    assert "slow steps 6" in recorded.messages[-1]


def test_large_jobs_compare_their_processes_every_few_logs(monkeypatch: pytest.MonkeyPatch):
    """Over all steps since the last comparison: process 1 is late before the first log of two."""
    this, notes, noted = 0, dict[int, str](), list[tuple[int, int]]()

    def leave(topic: str, text: str) -> None:
        notes[this] = text
        noted.append((this, number))

    processes = SimpleNamespace(process_count=lambda: 2, process_index=lambda: this)
    monkeypatch.setattr(stragglers, "NOTES", 1)
    monkeypatch.setattr(anomaly_monitor, "jax", processes)
    monkeypatch.setattr(anomaly_monitor, "leave_note", leave)
    monkeypatch.setattr(anomaly_monitor, "read_notes", lambda _: list(notes.values()))
    recorded = [AnomalyRecorder(), AnomalyRecorder()]
    monitors = [anomaly_monitor.AnomalyMonitor(Config(), LayerOrder.from_chunks([0], [2]), one) for one in recorded]
    for number in range(1, 17):
        for this in (1, 0):
            waits = Turn(5.0, 5.0, 0.0, 0.0) if this else Turn(5.0, 0.0, 0.0, 5.0)
            monitors[this].step(number, waits if number == 4 else Turn(1.0, 0.0, 0.0, 1.0))
            if number % 4 == 0:
                monitors[this].logged(number)
    assert noted == [(1, 8), (0, 8), (1, 16), (0, 16)]
    [straggler] = [anomaly for anomaly in recorded[0].anomalies if anomaly.kind == "straggler"]
    assert "Process 1 on " in straggler.text and "in the 5 steps up to 8 the others waited 5" in straggler.text
    assert not any(anomaly.kind == "straggler" for anomaly in recorded[1].anomalies)


@pytest.mark.long
def test_a_rollback_goes_back_to_the_save_and_leaves_out_the_batches_of_the_spike(tmp_path: Path):
    config = watched(tmp_path / "spiked", 18, **ROLLBACK)
    recorded = fit_with(config, scrambled(14))
    (spike,) = recorded.anomalies
    assert (spike.kind, spike.step, recorded.rewinds) == ("loss_spike", 14, [12])
    assert (spike.facts["rolled_back_to"], spike.facts["left_out"]) == (12, [12, 13])
    assert "went back to the checkpoint of step 12, and the batches of steps 13 to 14 are left out" in spike.text
    assert [record.step for record in recorded.records] == [*range(1, 14), *range(13, 19)]
    assert list(losses(config)) == list(range(1, 19)), "each step once"
    assert [event["to"] for event in events(config, "rewound")] == [12]

    # A run in which those two batches are not in the data, as batches 15 and on come two steps earlier.
    clean = watched(tmp_path / "clean", 18, **ROLLBACK)
    trainer = make_run(clean)
    trainer.left_out = (12, 13)
    trainer.fit([JsonLines(), Recorder()])
    assert losses(config) == losses(clean)
    assert_same_bits(saved_state(config, 18), saved_state(clean, 18))


@pytest.mark.long
def test_a_resumed_run_leaves_out_the_same_batches_and_judges_by_the_same_losses(tmp_path: Path):
    whole, parts = (watched(tmp_path / name, 20, **ROLLBACK) for name in ("whole", "parts"))
    fit_with(whole, scrambled(11, 18))
    for steps in (12, 16, 20):
        recorded = fit_with(watched(tmp_path / "parts", steps, **ROLLBACK), scrambled(11, 18))
    assert [anomaly.step for anomaly in recorded.anomalies] == [], "the second spike came before step 17"
    assert losses(parts) == losses(whole)
    assert_same_bits(saved_state(parts, 20), saved_state(whole, 20))
    facts = json.loads((folder_of(parts) / "checkpoints" / "00000020" / "facts.json").read_text())
    assert facts["left_out"] == [9, 10, 16, 17]
    assert facts["anomaly_monitor"]["rollbacks"] == 2


def test_one_rollback_too_many_stops_the_run(tmp_path: Path):
    with pytest.raises(TrainingError) as stopped:
        fit_with(watched(tmp_path, 30, **ROLLBACK), scrambled(*range(14, 40)))
    assert "after 2 rollbacks (watch.max_rollbacks) the run stops, and the same command continues it" in str(
        stopped.value
    )
    assert "from the checkpoint of step 12; lower optimizer.learning_rate, or look at the data of" in str(stopped.value)


def test_before_the_first_save_there_is_nothing_to_go_back_to(tmp_path: Path):
    recorded = fit_with(watched(tmp_path, 12, **{**ROLLBACK, "checkpoint": {"every": 12}}), scrambled(10))
    assert recorded.rewinds == []
    assert recorded.anomalies[0].text.endswith("nothing is saved yet to go back to, and training goes on.")


@pytest.mark.long
def test_a_spike_leaves_no_batches_out_where_no_rows_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = watched(tmp_path, 12, **ROLLBACK)
    monkeypatch.setattr(Data, "examples", property(lambda _: 12 * config.data.batch_size))
    recorded = fit_with(config, scrambled(11))
    assert recorded.anomalies[0].text.endswith("no rows for others, and training goes on.")
    assert not recorded.rewinds and list(losses(config)) == list(range(1, 13))


@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        (
            {"watch": {"on_spike": "rollback"}, "checkpoint": {"every_minutes": 0}},
            ("watch.on_spike: rollback", "checkpoints"),
        ),
        (
            {"watch": {"on_spike": "rollback", "limits": {"spike": None}}, "checkpoint": {"every": 5}},
            ("watch.on_spike: rollback", "needs spikes"),
        ),
        ({"watch": {"limits": {"spike_window": 3}}}, ("watch.limits.spike_window", "at least 10", "got 3")),
    ],
)
def test_a_watch_that_cannot_work_is_refused(tmp_path: Path, sections: dict[str, Any], parts: tuple[str, ...]):
    with refused(*parts):
        make_run(run_config(tmp_path, 5, **sections))


def test_a_loss_that_is_not_finite_is_traced_to_its_batch_once(tmp_path: Path):
    recorded = fit_with(watched(tmp_path, 7), poisoned((3, 4, 6)))
    assert len([message for message in recorded.messages if "skipped" in message]) == 3
    (anomaly,) = recorded.anomalies
    assert (anomaly.kind, anomaly.step) == ("not_finite", 3)
    assert anomaly.text == (
        "Step 3: the loss itself is not finite, though all weights are: look at its batch, or for an overflow forward."
    )
    assert anomaly.facts["gradients"]["layers/all/mlp/down"] == [1, 2, 3]
    assert anomaly.facts["gradients"]["head/weight"] is None


def test_a_gradient_that_is_not_finite_is_named_by_weight_and_layer(tmp_path: Path):
    trainer = make_run(run_config(tmp_path, 1, parallel=MESH))
    scales = {
        "up": [1, 1e-30, 1],
        "down": [1, 1e30, 1],
    }  # the same function, but the gradient of `up` is 1e30 times as long
    mlp = dict(trainer.state.master["layers"]["all"]["mlp"])
    for name, scale in scales.items():
        scaled = np.asarray(mlp[name]) * np.float32(scale)[:, None, None]
        mlp[name] = jax.device_put(scaled, mlp[name].sharding)
    layers = {"all": trainer.state.master["layers"]["all"] | {"mlp": mlp}}
    trainer.state = trainer.state._replace(master={**trainer.state.master, "layers": layers})
    trainer.fit([recorded := AnomalyRecorder()])
    (anomaly,) = recorded.anomalies
    assert anomaly.facts["gradients"] == {"layers/all/mlp/up": [2]}
    assert anomaly.text == (
        "Step 1: the loss is finite, but not the gradient of mlp/up in layer 2; the backward pass comes from the last "
        "layer, so it began in layer 2 (mlp/up)."
    )


def test_a_slow_batch_is_reported_as_a_slow_step_that_waited_for_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def slow(number: int, rows: Rows) -> Rows:
        if number == 17:
            late()
        return rows

    late = Late(4.0)
    monkeypatch.setattr(anomaly_monitor, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(pace, "SECONDS", 2.5)  # On a busy machine any step may take a second longer.
    recorded = fit_with(watched(tmp_path, 19, watch={"limits": {"slow_pace": None}}), slow)
    (anomaly,) = recorded.anomalies  # and no second one about data: it was a single wait
    # Batches are placed one step ahead.
    assert (anomaly.kind, anomaly.step) in {("slow_step", 15), ("slow_step", 16)}
    assert anomaly.text.endswith("s of it waiting for a batch.")


@pytest.mark.long
def test_a_slow_loader_is_reported_once_as_waiting_for_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    late = Late(0.25)

    def slow(number: int, rows: Rows) -> Rows:
        late()
        return rows

    monkeypatch.setattr(anomaly_monitor, "WAIT_SECONDS", 1.0)
    waits = {"limits": QUIET["limits"] | {"data_wait": 0.1}}
    recorded = fit_with(watched(tmp_path, 25, run={"log_every": 5}, watch=waits), slow)
    (anomaly,) = recorded.anomalies
    assert anomaly.kind == "data_wait"
    assert anomaly.text.startswith("The devices wait for data: ")
    assert (
        recorded.messages[-1]
        == "Some anomalies were not reported each time; in all: times that devices waited for data 2."
    )
    assert max(record.data_wait for record in recorded.records) >= anomaly.facts["share"] > 0.1
