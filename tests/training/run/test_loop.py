"""The loop around the step: what it compiles, frees, evaluates, traces and lets go of."""

import itertools
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.observe.events import Listener, StepRecord
from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.observe.writers.summary import SummaryFile
from jaxpar.training.run.run import Run
from jaxpar.training.step.forward_backward import StepMetrics
from tests.same_bits import assert_same_bits
from tests.training.runs import (
    MESH,
    Recorder,
    SharingRun,
    fit,
    folder_of,
    losses,
    make_run,
    make_trainer,
    run_config,
    saved_state,
)


class Compilations(Listener):
    """Counts XLA compilations, those answered from a cache included."""

    def __init__(self) -> None:
        self.count = 0
        self.after_step: dict[int, int] = {}
        self.announced: dict[str, int] = {}
        self.evaluated: list[int] = []
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration: float, **_: Any) -> None:
        self.count += event.endswith("backend_compile_duration")

    def step(self, record: StepRecord) -> None:
        self.after_step[record.step] = self.count

    def message(self, text: str) -> None:
        if text.startswith("Compiling "):
            assert text not in self.announced, "twice"
            self.announced[text] = self.count

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        self.evaluated.append(self.count)

    def close(self) -> None:
        jax.monitoring.unregister_event_duration_listener(self._hear)


def test_nothing_is_compiled_after_the_second_step_and_what_is_was_announced(tmp_path: Path):
    config = run_config(
        tmp_path, 5, parallel=MESH, evaluation={"every": 1, "batches": 2}, checkpoint={"every": 1}, model={"tied": True}
    )
    compilations = Compilations()
    _, recorded = fit(config, compilations)
    assert [step for step, _ in recorded.evaluations] == [1, 2, 3, 4, 5]
    assert recorded.saves == [1, 2, 3, 4, 5]
    assert compilations.after_step[1] > 0, "the counter hears nothing"
    assert compilations.count == compilations.after_step[2]
    step, evaluation = (compilations.announced[f"Compiling the {what} ..."] for what in ("training step", "evaluation"))
    assert step < evaluation < compilations.evaluated[0]


def test_the_tokens_and_the_utilisation_of_a_run_are_those_of_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Run, "peak_flops", 1e12)
    config = run_config(tmp_path, 6, parallel=MESH, run={"log_every": 2})
    trainer = make_run(config)
    pairs = [pairs for _, pairs in itertools.islice(trainer.batches_from(0), 7)]
    assert len({tuple(each.values()) for each in pairs}) > 1, "batches whose documents differ"
    summary, recorded = fit(config)
    masks = (batch["mask"] for batch, _ in itertools.islice(trainer.batches_from(0), 6))
    assert summary.tokens == sum(int(np.asarray(mask).sum()) for mask in masks)
    done = 0
    for record in recorded.records:
        steps = record.step - done
        together = sum((Counter(each) for each in pairs[done : record.step]), Counter())
        flops = trainer.flops(trainer.tokens(record.step, steps), together)
        assert record.mfu == pytest.approx(flops / (steps * record.step_time_s * 8 * 1e12), rel=1e-9)
        done = record.step
    assert done == 6


def test_a_validation_loss_is_that_of_the_last_step_or_none(tmp_path: Path):
    evaluated = {"every": 2, "batches": 1}
    config = run_config(tmp_path, 4, parallel=MESH, evaluation=evaluated)
    summary, recorded = fit(config, SummaryFile())
    assert summary.eval_loss == recorded.evaluations[-1][1]
    (folder_of(config) / "summary.json").unlink()
    again, recorded = fit(config)  # only the end of the run was left undone
    assert (again.eval_loss, recorded.evaluations) == (summary.eval_loss, [])
    stopped, recorded = fit(run_config(tmp_path, 9, parallel=MESH, evaluation=evaluated), SignalAfter(6))
    assert (stopped.steps, stopped.eval_loss, recorded.evaluations[-1][0]) == (7, None, 6)
    resumed, _ = fit(run_config(tmp_path, 9, parallel=MESH, evaluation={"batches": 0}), SummaryFile())
    assert (resumed.steps, resumed.eval_loss) == (9, None)
    assert json.loads((folder_of(config) / "summary.json").read_text())["eval_loss"] is None


def test_evaluations_that_are_asked_for_and_cannot_be_are_reported(tmp_path: Path):
    np.save(tmp_path / "tokens.npy", np.arange(5000, dtype=np.uint16) % 64)
    data = {"source": "tokens", "path": str(tmp_path / "tokens.npy")}
    asked = run_config(tmp_path, 1, parallel=MESH, data=data, evaluation={"every": 1, "batches": 1})
    _, recorded = fit(asked)
    assert "evaluation.every is 1, and there is no validation data: nothing is evaluated." in recorded.messages
    assert recorded.evaluations == []
    _, recorded = fit(run_config(tmp_path, 2, parallel=MESH, data=data, evaluation={"every": 0, "batches": 1}))
    assert not any("validation" in message for message in recorded.messages)


@pytest.mark.long
def test_a_router_that_the_loss_of_the_task_does_not_train_is_reported(tmp_path: Path):
    for router, number in (("top_k_softmax", 1), ("switch", 0)):
        model = {"layers": 1, "experts": ExpertsConfig(count=2, per_token=1, width=16, router=router)}
        _, recorded = fit(run_config(tmp_path, 1, run={"name": router}, model=model))
        assert sum("gives the router no gradient" in message for message in recorded.messages) == number


def test_steps_and_evaluation_without_fit_write_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer(run_config(Path("runs"), 5, parallel=MESH, evaluation={"batches": 2}))
    state = trainer.state
    first = float(trainer.step().loss)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.master, state.optimizer))), (
        "the state before is freed"
    )
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(trainer.state))
    before = trainer.evaluate()
    for _ in range(3):
        metrics = trainer.step()
    assert float(metrics.loss) < first
    assert trainer.evaluate() < before
    assert trainer.steps_done == 4
    assert list(tmp_path.iterdir()) == []


def test_fit_goes_on_from_the_steps_taken_by_hand(tmp_path: Path):
    whole = run_config(tmp_path / "whole", 5, parallel=MESH)
    summary, _ = fit(whole)
    trainer = make_trainer(config := run_config(tmp_path / "by-hand", 5, parallel=MESH))
    trainer.step()
    trainer.step()
    assert trainer.fit([recorded := Recorder()]).tokens == summary.tokens, "with those of the steps by hand"
    assert {record.step: record.loss for record in recorded.records}.items() <= losses(whole).items()
    assert [record.step for record in recorded.records] == [3, 4, 5]
    assert_same_bits(saved_state(config, 5), saved_state(whole, 5))


def test_evaluation_is_the_same_on_every_layout_and_at_every_call(tmp_path: Path):
    layouts = [{}, MESH, {"fsdp": 4, "tensor": 2, "microbatches": 2}]
    trainers = [make_trainer(run_config(tmp_path, 5, parallel=each, evaluation={"batches": 3})) for each in layouts]
    found = [trainer.evaluate() for trainer in trainers]
    assert found == pytest.approx([found[0]] * len(layouts), rel=1e-6)
    assert trainers[0].evaluate() == found[0]


@pytest.mark.long
def test_a_trace_of_the_named_steps_is_written(tmp_path: Path):
    config = run_config(tmp_path, 4, run={"profile": "2:3"}, parallel={"fsdp": 2})
    fit(config)
    traces = list((folder_of(config) / "profile").rglob("*.xplane.pb"))
    assert len(traces) == 1
    names = traces[0].read_bytes()
    assert b"step_num" in names
    assert losses(config).keys() == {1, 2, 3, 4}


class SignalAfter(Listener):
    """Sends this process a signal once a step is logged; with `again`, also when the last checkpoint is in place."""

    def __init__(self, step: int, again: bool = False, number: signal.Signals = signal.SIGTERM) -> None:
        self.at, self.again, self.number = step, again, number

    def step(self, record: StepRecord) -> None:
        if record.step == self.at:
            os.kill(os.getpid(), self.number)

    def saved(self, step: int, path: str) -> None:
        if self.again:
            os.kill(os.getpid(), self.number)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, also where these tests were started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Eight steps that were never interrupted."""
    fit(config := run_config(tmp_path_factory.mktemp("whole"), 8, parallel=MESH))
    return config


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("number", "name", "again"), [(signal.SIGTERM, "SIGTERM", True), (signal.SIGINT, "Ctrl-C", False)]
)
def test_a_signal_saves_and_states_how_to_go_on_and_the_continued_run_is_the_uninterrupted_one(
    tmp_path: Path, whole: Config, number: signal.Signals, name: str, again: bool
):
    config = run_config(tmp_path, 8, parallel=MESH)
    summary, recorded = fit(config, SignalAfter(3, again, number))
    assert (summary.steps, recorded.saves) == (4, [4])
    for part in (f"Stopped by {name} after step 4 of 8", "the same command", "step 5"):
        assert part in recorded.messages[-1]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    summary, recorded = fit(config)
    assert (summary.steps, [record.step for record in recorded.records]) == (8, [5, 6, 7, 8])
    assert losses(config) == losses(whole)
    assert_same_bits(saved_state(config, 8), saved_state(whole, 8))


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_interrupts_the_run(tmp_path: Path):
    config = run_config(tmp_path, 8, parallel=MESH)
    with pytest.raises(KeyboardInterrupt):
        fit(config, SignalAfter(3, again=True, number=signal.SIGINT))
    _, recorded = fit(config)
    assert recorded.records[0].step == 5, "the save in the making was completed"


def test_sigterm_during_the_last_step_lets_the_run_end(tmp_path: Path):
    config = run_config(tmp_path, 4, parallel=MESH, evaluation={"batches": 1})
    summary, recorded = fit(config, SignalAfter(3))
    assert summary.steps == 4
    assert summary.eval_loss == recorded.evaluations[-1][1]
    assert not any("SIGTERM" in message for message in recorded.messages)


def test_a_checkpoint_that_is_complete_is_reported_before_a_later_step_is_logged(tmp_path: Path):
    class StepTimes(Listener):
        now = 0

        def __init__(self) -> None:
            self.reported: dict[int, int] = {}

        def step(self, record: StepRecord) -> None:
            self.now = record.step

        def saved(self, step: int, path: str) -> None:
            assert (Path(path) / "manifest.json").exists()
            self.reported[step] = self.now

    class SlowDevice(SharingRun):
        """Each step takes until the checkpoint before it is written."""

        def step(self) -> StepMetrics:
            for thread in threading.enumerate():
                if thread.name.startswith("checkpoint-"):
                    thread.join()
            return super().step()

    config, times = run_config(tmp_path, 6, parallel=MESH, checkpoint={"every": 2}), StepTimes()
    SlowDevice(config, devices=jax.devices()[:8]).fit([JsonLines(), times])
    assert times.reported == {2: 2, 4: 4, 6: 6}


def test_a_run_that_ends_within_its_warm_up_says_so(tmp_path: Path):
    """The schedule of the small runs warms up for two steps."""
    reported = []
    for steps in (2, 3):
        _, recorded = fit(run_config(tmp_path / str(steps), steps))
        reported.append([text for text in recorded.messages if "warm-up" in text])
    [[line], none] = reported
    assert not none
    assert "run.steps is 2" in line and "optimizer.warmup_steps" in line
