"""events.jsonl over a run's starts, ends and kills."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jaxpar.observe.events import Anomaly
from jaxpar.observe.writers.event_log import EventLog
from tests.observe.records import record, run_info, summary


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_every_event_has_its_time_its_name_and_the_step_before_it(tmp_path: Path) -> None:
    began = datetime.now(UTC)
    log = EventLog()
    log.start(run_info(tmp_path, baseline_loss=2.5))
    log.message("Compiled in 1.0 s.")
    log.step(record(10))
    log.message("Step 11 skipped")
    log.saved(10, str(tmp_path / "checkpoints" / "10"))
    log.sample("def", " main")
    log.end(summary())
    log.close()
    reported = events(tmp_path)
    assert [(e["event"], e["step"]) for e in reported] == [
        ("start", 0), ("message", 0), ("message", 10), ("saved", 10), ("sample", 10), ("end", 10), ("close", 10),
    ]  # fmt: skip
    assert reported[0]["plan"][0] == ["mesh", "fsdp 2 x tensor 4", "as written"]
    assert (reported[0]["steps"], reported[0]["baseline_loss"]) == (20, 2.5)
    assert reported[2]["text"] == "Step 11 skipped"
    assert (reported[3]["checkpoint"], reported[3]["path"]) == (10, "checkpoints/10")
    assert (reported[4]["prompt"], reported[4]["continuation"]) == ("def", " main")
    assert reported[6]["ended"] is True
    times = [datetime.fromisoformat(e["time"]) for e in reported]
    assert times == sorted(times) and abs((times[0] - began).total_seconds()) < 60


def test_an_event_is_on_disk_before_the_next_and_a_run_that_fails_is_closed_without_an_end(tmp_path: Path) -> None:
    log = EventLog()
    log.start(run_info(tmp_path, baseline_loss=float("nan")))
    assert events(tmp_path)[0]["baseline_loss"] is None
    log.message("first")
    assert events(tmp_path)[-1]["text"] == "first"
    log.close()
    assert events(tmp_path)[-1] | {"time": ""} == {"time": "", "event": "close", "step": 0, "ended": False}


def test_what_a_kill_left_unfinished_is_removed_and_the_rest_of_the_past_stays(tmp_path: Path) -> None:
    log = EventLog()
    log.start(run_info(tmp_path))
    log.saved(10, "elsewhere/10")
    log.close()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"time": "20')
    again = EventLog()
    again.start(run_info(tmp_path, first_step=11))
    again.close()
    assert [(e["event"], e["step"]) for e in events(tmp_path)] == [
        ("start", 0), ("saved", 0), ("close", 0), ("start", 10), ("close", 10),
    ]  # fmt: skip
    assert events(tmp_path)[1]["path"] == "elsewhere/10"


def test_a_run_that_has_nothing_to_do_leaves_no_trace(tmp_path: Path) -> None:
    log = EventLog()
    log.message("already has its 20 steps")
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_an_anomaly_stands_with_its_numbers_and_stays_when_the_run_goes_back(tmp_path: Path) -> None:
    log = EventLog()
    log.start(run_info(tmp_path))
    log.anomaly(Anomaly(12, "loss_spike", "Loss spike at step 12", {"loss": 9.5, "left_out": [10, 11]}))
    log.rewound(8)
    log.message("on")
    log.close()
    spike, back, message, _ = events(tmp_path)[1:]
    assert (spike["event"], spike["step"], spike["kind"]) == ("anomaly", 12, "loss_spike")
    assert (spike["loss"], spike["left_out"]) == (9.5, [10, 11])
    assert (back["event"], back["to"], message["step"]) == ("rewound", 8, 8)
