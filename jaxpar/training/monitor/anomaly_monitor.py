"""The anomaly monitor of a run: it detects anomalies during training and reports each once.

`docs/warnings.md` shows what each anomaly looks like. Slow steps and waiting devices are judged from times
that the loop measures anyway, losses from numbers that it reads anyway; only a non-finite step costs more.
"""

from __future__ import annotations

import json
import math
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import jax

from jaxpar.checkpoint.processes import leave_note, read_notes
from jaxpar.config import Config
from jaxpar.data import batch_index
from jaxpar.mesh.layer_order import LayerOrder
from jaxpar.mesh.parameters import Weights
from jaxpar.observe.episodes import Episodes
from jaxpar.observe.events import Anomaly, AnomalyKind, Listener, StepRecord
from jaxpar.observe.pace import LAST, SECONDS, WARMING_UP, Losses, Pace, SlowSteps
from jaxpar.observe.spikes import LossWindow, Spike
from jaxpar.observe.stragglers import ProcessPace, find_straggler, logs_between
from jaxpar.observe.timer import Turn
from jaxpar.pages.units import percent, plain, plural, seconds
from jaxpar.runtime.carried import Limit
from jaxpar.training.errors import TrainingError
from jaxpar.training.monitor.diagnosis import broken_gradients, broken_weights, describe
from jaxpar.training.step.forward_backward import StepMetrics

PACE = "pace"
"""Topic of the notes in which the processes of a job report their pace."""
WAIT_STEPS, WAIT_SECONDS = 10, 5.0
"""The least number of steps, and of seconds, over which a wait for data is judged."""
SLOW_APART_S = 3600.0
"""Slow steps and paces are reported at most once in this time: on a machine with other work they come again and
again."""
WORDS: dict[str, str] = {
    "not_finite": "steps that were not finite",
    "empty_step": "steps without a token that the loss counts",
    "loss_spike": "loss spikes",
    "slow_step": "slow steps",
    "slow_pace": "stretches of slower steps",
    "data_wait": "times that devices waited for data",
    "straggler": "times that one process held up the others",
    "layer_limit": "times that a number of a layer was above its limit",
}


class AnomalyMonitor:
    """Watches one run; all processes of a job see the same, and process 0 reports."""

    def __init__(
        self, config: Config, order: LayerOrder, listeners: Listener, limits: Mapping[str, Limit] | None = None
    ) -> None:
        """`limits` are those of numbers of layers, by their name in `StepRecord.features`."""
        self._config, self._watch, self._order, self._listeners = config, config.watch, order, listeners
        self._losses = LossWindow(self._watch.limits.spike_window, self._watch.limits.spike)
        self._slow, self._pace = SlowSteps(self._watch.limits.slow_step), Pace(self._watch.limits.slow_pace)
        self._limits = limits or {}
        self._episodes = Episodes(quiet=LAST, apart_s=dict.fromkeys(("slow_step", "slow_pace"), SLOW_APART_S))
        self._reported: dict[str, int] = {}
        self._rollbacks = 0
        self._warm_up()
        self._paces: deque[ProcessPace] = deque(maxlen=2)
        self._compared = 0
        """Last step up to which the processes were compared."""

    def facts(self) -> dict[str, object]:
        """State that a checkpoint saves for `restore`."""
        return {"losses": self._losses.losses, "rollbacks": self._rollbacks}

    def restore(self, facts: dict[str, Any]) -> None:
        """Continue from the facts of a checkpoint."""
        self._losses = LossWindow(self._watch.limits.spike_window, self._watch.limits.spike, facts["losses"])
        self._rollbacks = facts["rollbacks"]
        self._warm_up()

    def step(self, step: int, turn: Turn) -> None:
        """Step `step` is done, and `turn` states where its time went."""
        self._warm += 1
        if self._warm <= WARMING_UP:
            return
        self._lap.add(turn)
        slow, pace = self._slow.add(turn), self._pace.add(turn)
        if slow is not None:
            times = slow.seconds / slow.median
            median = f"{plain(times, 3)} times the median of {seconds(slow.median)}"
            text = f"Step {step} took {seconds(slow.seconds)}, {median}"
            self._report(step, "slow_step", f"{text}; {slow.where}.", seconds=slow.seconds, median=slow.median)
        if pace is not None:
            times = pace.seconds / pace.best
            best = f"the {seconds(pace.best)} that they took at best"
            text = f"Steps take {seconds(pace.seconds)} now, {plain(times, 3)} times {best}"
            self._report(step, "slow_pace", f"{text}; {pace.where}.", seconds=pace.seconds, best=pace.best)

    def logged(self, step: int) -> float:
        """Step `step` was logged: judge the steps since the one before. Returns the share that waited for data."""
        lap, self._lap = self._lap, Losses()
        self._wait += lap
        if self._wait.steps >= WAIT_STEPS and self._wait.seconds >= WAIT_SECONDS:
            wait, self._wait = self._wait, Losses()
            self._judge_wait(step, wait)
        if jax.process_count() > 1 and lap.steps:
            self._compare_processes(step, lap)
        return lap.batch_share

    def features(self, step: int, record: StepRecord) -> None:
        """Judge the numbers of layers in step `step`, which was logged, each by the layer where it is largest."""
        for name, limit in self._limits.items():
            layers = (record.features or {}).get(name)
            if not isinstance(layers, dict) or not layers:
                continue
            layer, most = max(layers.items(), key=lambda item: item[1])
            if most >= limit.least:
                text = f"{name} of layer {layer} at step {step}: {plain(most, 3)} {limit.meaning}."
                self._report(step, "layer_limit", text, metric=name, layer=int(layer), value=most)

    def skipped(self, step: int, metrics: StepMetrics, weights: Weights, newest: Callable[[], str]) -> None:
        """Step `step` was not finite and not applied; `weights` are those after it.

        Reports it, and for the first of several in a row also where it began. Collective over the processes of a job.

        Args:
            newest: words for where the newest checkpoint is.

        Raises:
            TrainingError: there were `watch.limits.skipped_steps` in a row.
        """
        loss, norm = float(metrics.loss), float(metrics.grad_norm)
        half = self._config.precision.compute == "float16"
        scale = f", loss scale {float(metrics.loss_scale):g}" if half else ""
        self._listeners.message(f"Step {step} skipped: loss {loss}, gradient norm {norm}{scale}.")
        # Under float16 a gradient that overflows is how the loss scale is found.
        if not (half and math.isfinite(loss)) and self._episodes.begins("not_finite", step):
            self._diagnose(step, metrics, weights)
        in_row = int(metrics.skipped_in_row)
        if in_row >= self._watch.limits.skipped_steps:
            where = "only the gradient is not" if math.isfinite(loss) else "the loss itself is not finite"
            first = step - in_row + 1
            steps = f"steps {first} to {step}" if in_row > 1 else f"step {step}"
            raise TrainingError(
                f"{plural(in_row, 'step')} in a row had a non-finite loss or gradient ({where}; learning rate "
                f"{float(metrics.learning_rate):.3g}{scale}): stopped at step {step} with the weights of step "
                f"{step - in_row} unchanged ({newest()}); lower optimizer.learning_rate, or look at the "
                f"data of {steps}"
            )

    def empty(self, step: int) -> None:
        """Step `step` had no token that the loss counts, and changed nothing."""
        text = f"Step {step} has no token that the loss counts: it has no loss, and the weights stay as they are."
        self._report(step, "empty_step", text)

    def loss(self, loss: float) -> Spike | None:
        """Add the finite loss of a step; returns a spike if it is one, for `report` or `rolled_back`."""
        return self._losses.add(loss)

    def report(self, step: int, spike: Spike, *, because: str = "") -> None:
        """Report a spike after which the run continues."""
        text = f"{_words(step, spike)}; {because}training goes on."
        self._report(step, "loss_spike", text, **asdict(spike))

    def batches_to_leave_out(self, step: int, spike: Spike, newest: int, left_out: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of all batches that no step uses after a rollback from the spike at `step` to checkpoint `newest`.

        Raises `TrainingError` when there were `watch.max_rollbacks` already.
        """
        if self._rollbacks >= self._watch.max_rollbacks:
            raise TrainingError(
                f"{_words(step, spike)}; after {self._rollbacks} rollbacks (watch.max_rollbacks) the run stops, and "
                f"the same command continues it from the checkpoint of step {newest}; lower optimizer.learning_rate, "
                f"or look at the data of the steps from {newest + 1} on"
            )
        steps = range(max(newest, step - self._watch.skip_batches), step)
        return tuple(sorted({*left_out, *(batch_index(step, left_out) for step in steps)}))

    def rolled_back(self, step: int, spike: Spike, to: int, rollbacks: int, added: list[int]) -> None:
        """Report a rollback from the spike at step `step` to the checkpoint of step `to`."""
        self._rollbacks = rollbacks
        first = step - len(added) + 1
        which = f"batch of step {step} is" if len(added) == 1 else f"batches of steps {first} to {step} are"
        text = (
            f"{_words(step, spike)}; went back to the checkpoint of step {to}, and the {which} left out from now on "
            f"(rollback {rollbacks} of {self._watch.max_rollbacks})."
        )
        self._episodes.begins("loss_spike", step)
        self._emit(Anomaly(step, "loss_spike", text, {**asdict(spike), "rolled_back_to": to, "left_out": added}))

    @property
    def rollbacks(self) -> int:
        """Rollbacks of this run so far."""
        return self._rollbacks

    def sum_up(self) -> None:
        """At the end: counts of the anomalies that occurred more often than they were reported."""
        counts = self._episodes.occurrences
        if any(count > self._reported.get(kind, 0) for kind, count in counts.items()):
            words = ", ".join(f"{WORDS[kind]} {count}" for kind, count in counts.items())
            self._listeners.message(f"Some anomalies were not reported each time; in all: {words}.")

    def _diagnose(self, step: int, metrics: StepMetrics, weights: Weights) -> None:
        finite = math.isfinite(float(metrics.loss))
        broken = broken_gradients(metrics.squares, self._order)
        ruined = [] if finite else broken_weights(weights)
        words = describe(broken, loss_is_finite=finite, weights=ruined, tied=self._config.model.tied)
        facts = {"loss_is_finite": finite, "gradients": broken, "weights": ruined}
        self._emit(Anomaly(step, "not_finite", f"Step {step}: {words}.", facts))

    def _warm_up(self) -> None:
        self._warm, self._lap, self._wait = 0, Losses(), Losses()
        self._since_compared, self._logs = Losses(), 0

    def _judge_wait(self, step: int, wait: Losses) -> None:
        limit = self._watch.limits.data_wait
        if limit is None or wait.batch - wait.longest < max(SECONDS, limit * wait.seconds):
            return  # A single long wait is a slow step.
        text = (
            f"The devices wait for data: {percent(wait.batch_share, digits=0)} of the time of the {wait.steps} steps "
            f"up to {step}, {seconds(wait.batch / wait.steps)} a step."
        )
        self._report(step, "data_wait", text, share=wait.batch_share, seconds=wait.batch, steps=wait.steps)

    def _compare_processes(self, step: int, lap: Losses) -> None:
        """Report the pace of this process; as process 0, compare all processes once all have reported."""
        self._since_compared += lap
        self._logs += 1
        if self._logs < logs_between(jax.process_count()):
            return
        lap, self._since_compared, self._logs = self._since_compared, Losses(), 0
        self._paces.append(ProcessPace(jax.process_index(), socket.gethostname(), step, lap))
        leave_note(PACE, json.dumps([asdict(pace) for pace in self._paces]))
        if jax.process_index() != 0:
            return
        noted = [pace for note in read_notes(PACE) for pace in map(_pace, json.loads(note))]
        for step in sorted({pace.step for pace in noted if pace.step > self._compared}):
            paces = [pace for pace in noted if pace.step == step]
            if len(paces) == jax.process_count():
                self._compared = step
                self._judge_processes(paces)

    def _judge_processes(self, paces: list[ProcessPace]) -> None:
        straggler = find_straggler(paces, self._watch.limits.straggler)
        if straggler is None:
            return
        pace, losses = straggler.pace, straggler.pace.losses
        text = (
            f"Process {pace.process} on {pace.host} holds up the job: in the {losses.steps} steps up to {pace.step} "
            f"the others waited {seconds(straggler.seconds)} for it, {percent(straggler.share, digits=0)} of the time; "
            f"it waited {seconds(losses.batch)} of that for batches."
        )
        facts = {"process": pace.process, "host": pace.host, "seconds": straggler.seconds, "share": straggler.share}
        self._report(pace.step, "straggler", text, **facts, batch_seconds=losses.batch)

    def _report(self, step: int, kind: AnomalyKind, text: str, **facts: object) -> None:
        if self._episodes.begins(kind, step):
            self._emit(Anomaly(step, kind, text, facts))

    def _emit(self, anomaly: Anomaly) -> None:
        self._reported[anomaly.kind] = self._reported.get(anomaly.kind, 0) + 1
        self._listeners.anomaly(anomaly)


def _words(step: int, spike: Spike) -> str:
    return (
        f"Loss spike at step {step}: {plain(spike.loss)}, where the {spike.losses} steps before it had a median of "
        f"{plain(spike.median)} ({plain(spike.deviations, 3)} standard deviations above it)"
    )


def _pace(noted: dict[str, Any]) -> ProcessPace:
    return ProcessPace(**{**noted, "losses": Losses(**noted["losses"])})
