"""The work after some steps of the training loop: logging, evaluation, saving, and the summary at the end."""

from __future__ import annotations

from jaxpar.checkpoint.facts import MONITOR
from jaxpar.distributed import liveness
from jaxpar.generation.sampling import NotFinite
from jaxpar.layout.state import without_frozen
from jaxpar.observe.events import Listener, Summary
from jaxpar.observe.memory import memory_kind, peak_bytes
from jaxpar.training.monitor.anomaly_monitor import AnomalyMonitor
from jaxpar.training.run.continuing import sample_validation
from jaxpar.training.run.progress import Progress
from jaxpar.training.run.run import Run
from jaxpar.training.run.saving import checkpoint_facts
from jaxpar.training.run_folder.save_clock import SaveClock
from jaxpar.training.run_folder.saves import Saves
from jaxpar.training.step.forward_backward import StepMetrics


class Milestones:
    """Logs, evaluates and saves after the steps at which that is due.

    Args:
        trainer: the run.
        listeners: receive its events.
        progress: counters of the run.
        monitor: finds anomalies of the run.
        saves: writes its checkpoints.
    """

    def __init__(self, trainer: Run, listeners: Listener, progress: Progress, monitor: AnomalyMonitor, saves: Saves):
        self.trainer, self.listeners, self.config, self.timer = trainer, listeners, trainer.config, trainer.timer
        self.progress, self.monitor, self.saves = progress, monitor, saves
        self.clock = SaveClock(self.config.checkpoint.every_minutes)
        self.logged = 0
        """Last step that was logged; 0 before the first of this process."""
        self.baseline: float | None = None
        self._announced: set[str] = set()
        """Programs whose compilation was announced by this process."""

    def due_after(self, step: int) -> bool:
        """Whether an evaluation, a save, or a look at the clock comes between `step` and the next one."""
        return self._at_cadence(step) or self.clock.looks(step)

    def after(self, step: int, metrics: StepMetrics, *, stop: bool) -> None:
        """Log, evaluate and save what is due after `step`; `stop` if no step follows."""
        if self.clock.looks(step):
            liveness.report_activity(f"deciding whether to save after step {step}")
        every = self.config.checkpoint.every
        last = step == self.config.run.steps or stop
        save = self.clock.due(step) or last or (every > 0 and step % every == 0)
        if save or self.logged == 0 or step % self.config.run.log_every == 0 or self._at_cadence(step):
            self._log_evaluate_save(step, metrics, stop=stop, save=save)

    def announce_compiling(self, what: str) -> None:
        """Announce what is compiled now, unless this process has compiled it before."""
        if what not in self._announced:
            self._announced.add(what)
            self.listeners.message(f"Compiling {what} ...")

    def finish(self) -> Summary:
        """Sample from the model and summarize the run."""
        liveness.report_activity("finishing")
        trainer, timer, config = self.trainer, self.timer, self.config
        finished = trainer.steps_done >= config.run.steps
        if finished and config.evaluation.sample_tokens and trainer.data.validation is not None:
            self.announce_compiling("the model for a sample")
            try:
                self.listeners.sample(*sample_validation(trainer))
            except NotFinite as error:  # The steps are done: only the sample is missing.
                self.listeners.message(f"There is no sample: {error}.")
        summary = Summary(
            steps=trainer.steps_done,
            loss=self.progress.loss,
            eval_loss=self.progress.validation_loss(trainer.steps_done),
            baseline_loss=self.baseline,
            tokens=self.progress.tokens,
            train_seconds=timer.train_seconds,
            compile_seconds=timer.compile_seconds,
            first_step_seconds=timer.first_step_seconds or 0.0,
            steady_step_seconds=timer.steady_step_seconds or 0.0,
            peak_bytes=peak_bytes(),
            predicted_bytes=trainer.predicted_bytes,
            host_step_seconds=timer.host_step_seconds or 0.0,
            memory_kind=memory_kind(),
            epochs=trainer.epochs(trainer.steps_done),
            empty_steps=self.progress.empty,
        )
        self.monitor.sum_up()
        self.listeners.end(summary)
        return summary

    def _at_cadence(self, step: int) -> bool:
        """Whether `evaluation.every` or `checkpoint.every` divides `step`."""
        cadences = (self.config.evaluation.every, self.config.checkpoint.every)
        return any(every and step % every == 0 for every in cadences)

    def _log_evaluate_save(self, step: int, metrics: StepMetrics, *, stop: bool, save: bool) -> None:
        """Log `step`, and evaluate and save after it if that is due."""
        liveness.report_activity(f"logging step {step}")
        config, last = self.config, self.config.run.steps
        lap = self.timer.lap(step - self.logged if self.logged else None)
        self.logged = step
        data_wait = self.monitor.logged(step)
        every = config.evaluation.every
        if self.trainer.evaluates and not stop and (step == last or (every and step % every == 0)):
            self._evaluate(step)
        record = self.progress.record(self.trainer, step, metrics, lap, data_wait)
        self.monitor.features(step, record)
        self.listeners.step(record)
        if save:
            liveness.report_activity(f"saving step {step}")
            with self.timer.paused():
                self._save(step, int(metrics.skipped_in_row), must=stop or step == last)

    def _evaluate(self, step: int) -> None:
        self.announce_compiling("the evaluation")
        liveness.report_activity(f"evaluating after step {step}")
        with self.timer.paused():
            metrics = self.trainer.evaluation()
            loss = metrics.pop("loss", None)
            if loss is None:
                self.listeners.message("Nothing of the validation data has a loss: this step is not evaluated.")
                return
            self.progress.evaluated(step, loss, metrics)
            self.listeners.evaluation(step, loss, self.baseline)
            for prompt, continuation in self.trainer.samples:
                self.listeners.sample(prompt, continuation)

    def _save(self, step: int, skipped_in_row: int, *, must: bool) -> None:
        facts = checkpoint_facts(self.trainer, self.progress, skipped_in_row) | {MONITOR: self.monitor.facts()}
        self.clock.saved()
        self.saves.begin(step, self.trainer.saved.outgoing(without_frozen(self.trainer.state)), facts, must=must)
