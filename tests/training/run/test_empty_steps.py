"""Steps whose batch has no token that the loss counts: they have no loss, change nothing, and are counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.layers.experts.feed_forward import ROUTED_TOKENS
from jaxpar.memory.disk_array import DiskArray
from jaxpar.observe.writers.jsonl import read_metrics
from jaxpar.runtime.batch import BatchPlacer
from jaxpar.runtime.passes import AUXILIARY_LOSS
from jaxpar.training.rate_sweep import sweep_rates
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.training.monitor.test_anomaly_monitor import Rows, events, fit_with, watched
from tests.training.runs import folder_of, saved_state


def masked(rows: Rows) -> Rows:
    """Rows in which the loss counts no token."""
    return {**rows, "mask": np.zeros_like(rows["mask"])}


def without_tokens(*numbers: int) -> Callable[[int, Rows], Rows]:
    """Batches of which some have no token that the loss counts."""
    return lambda number, rows: masked(rows) if number in numbers else rows


def saving(folder: Path, steps: int) -> Config:
    return watched(folder, steps, checkpoint={"every": 1, "keep_last": 9})


def test_an_empty_step_has_no_loss_changes_nothing_and_is_counted_also_after_a_restart(tmp_path: Path):
    recorded = fit_with(saving(tmp_path, 4), without_tokens(3))
    losses = [record.loss for record in recorded.records]
    assert losses[2] is None and all(loss is not None and np.isfinite(loss) for loss in losses[:2] + losses[3:])
    assert [record.empty_steps for record in recorded.records] == [0, 0, 1, 1]
    assert recorded.records[-1].skipped_steps == 0
    assert recorded.records[3].learning_rate == recorded.records[2].learning_rate, "the schedule counts updates"
    before, empty, after = (saved_state(saving(tmp_path, 4), step) for step in (2, 3, 4))
    assert_same_bits(empty._replace(step=before.step), before)
    assert (int(empty.step), int(after.step), int(after.applied)) == (3, 4, 3)

    config = saving(tmp_path, 8)
    recorded = fit_with(config, without_tokens(7, 8))
    assert [record.empty_steps for record in recorded.records] == [1, 1, 2, 3]
    assert [anomaly.step for anomaly in recorded.anomalies if anomaly.kind == "empty_step"] == [7]
    assert [event["step"] for event in events(config, "anomaly") if event["kind"] == "empty_step"] == [3, 7]
    lines = read_metrics(folder_of(config) / "metrics.jsonl")
    assert [line["step"] for line in lines if line["loss"] is None] == [3, 7, 8]
    summary = recorded.summary
    assert summary is not None and (summary.empty_steps, summary.loss) == (3, recorded.records[1].loss)


PRECISIONS: dict[str, dict[str, Any]] = {
    "biases of a router": {},
    "loss scale": {"precision": {"compute": "float16"}},
    "history of FP8": {
        "precision": {"matmul": "fp8_delayed", "matmul_options": MatmulOptions(first_layers=0, last_layers=0)}
    },
    "offloaded": {"memory": {"optimizer_offload": "host"}},
}


@pytest.mark.matrix(quick=("biases of a router",), ci=1)
@pytest.mark.parametrize("case", PRECISIONS)
def test_nothing_of_the_state_changes_in_a_step_in_which_only_the_routers_have_a_loss(case: str):
    """And that loss is the one of the same tokens in a step where they count."""
    experts = ExpertsConfig(count=4, router="sigmoid", width=16, balance_loss=0.1, z_loss=0.01)
    run = SmallRun(small(model={"layers": 1, "experts": experts}, **PRECISIONS[case]))
    state = run.step.residency.initial_state()
    compiled = run.step.train
    for step in range(2):
        state, _ = run.step.residency.advance(compiled, state, run.batch(step), run.step.arguments)
    before = jax.device_get(state)
    state, metrics = run.step.residency.advance(compiled, state, run.place(masked(run.rows(2))), run.step.arguments)
    assert float(metrics.tokens) == 0 and np.isnan(metrics.loss) and bool(metrics.finite)
    assert float(metrics.report[ROUTED_TOKENS]) == 1 and float(metrics.grad_norm) > 0
    after = jax.device_get(state)
    assert int(after.step) == 3
    assert_same_bits(after._replace(step=before.step), before)
    _, unmasked = run.step.residency.advance(compiled, state, run.batch(2), run.step.arguments)
    assert float(unmasked.report[AUXILIARY_LOSS]) == pytest.approx(float(metrics.report[AUXILIARY_LOSS]), rel=1e-5)


def test_a_sweep_of_learning_rates_leaves_out_empty_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place, taken = BatchPlacer.__call__, []

    def some(self: BatchPlacer, rows: Rows) -> Any:
        taken.append(rows)
        return place(self, rows if empty_every is None or len(taken) % empty_every else masked(rows))

    monkeypatch.setattr(BatchPlacer, "__call__", some)
    seen: list[tuple[int, float, float]] = []
    config = small(model={"layers": 1}, parallel={"fsdp": 8})
    sweep = lambda: sweep_rates(config, low=1e-5, high=1e-4, steps=20, progress=lambda *step: seen.append(step))
    empty_every = 2
    found = sweep()
    assert [number for number, *_ in seen] == list(range(1, 11)) and np.isfinite(found.losses).all()
    assert json.dumps(found.to_json(), allow_nan=False)
    empty_every = 1
    with refused("data.sequence_length", "no row", "20"):
        sweep()


@pytest.mark.long
def test_an_empty_step_writes_nothing_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = SmallRun(small(model={"layers": 1}, memory={"optimizer_offload": "file"}, run={"dir": str(tmp_path)}))
    state, written = run.step.residency.initial_state(), []
    monkeypatch.setattr(DiskArray, "write", lambda *arguments: written.append(arguments))
    for rows, writes in ((masked(run.rows(0)), False), (run.rows(0), True)):
        run.step.residency.advance(run.step.train, state, run.place(rows), run.step.arguments)
        assert bool(written) == writes
