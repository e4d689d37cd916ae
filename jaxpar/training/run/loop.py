"""The training loop: logging, evaluation, saving, and the ways in which a run can end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import Any

import jax

from jaxpar.checkpoint.errors import is_of_file, reason
from jaxpar.checkpoint.facts import MONITOR
from jaxpar.checkpoint.processes import PATIENCE_S, from_first, gather
from jaxpar.config import config_to_dict
from jaxpar.config.checks.run import profile_steps
from jaxpar.config.parts import OBJECTIVES
from jaxpar.config.spelling import named
from jaxpar.distributed import liveness
from jaxpar.generation.sampling import NotFinite
from jaxpar.layout.state import without_frozen
from jaxpar.observe.events import Listener, Listeners, RunInfo, Summary
from jaxpar.observe.memory import memory_kind, peak_bytes
from jaxpar.observe.profile import ProfileWindow, step_annotation
from jaxpar.observe.spikes import Spike
from jaxpar.pages.units import plural, seconds, size
from jaxpar.training.errors import TrainingError
from jaxpar.training.monitor.anomaly_monitor import AnomalyMonitor
from jaxpar.training.run.continuing import sample_heldout
from jaxpar.training.run.out_of_memory import explained
from jaxpar.training.run.plan_brief import plan_brief, start_notes
from jaxpar.training.run.plan_table import plan_rows
from jaxpar.training.run.progress import Progress
from jaxpar.training.run.run import Run
from jaxpar.training.run.saving import SaveClock, checkpoint_facts
from jaxpar.training.run.termination import Termination, termination
from jaxpar.training.run_folder.folder import RunFolder
from jaxpar.training.run_folder.mirroring import fetching, mirror_of, mirrored
from jaxpar.training.run_folder.saves import Saves
from jaxpar.training.step.forward_backward import StepMetrics


def fit(trainer: Run, listeners: Iterable[Listener], progress: Progress | None = None) -> Summary:
    """Run `trainer` to its last step; see `Trainer.fit`.

    Args:
        trainer: the run.
        listeners: what is notified of it.
        progress: the counters of steps that it took before; None where it took none.
    """
    try:
        with closing(Listeners(listeners)) as everyone:
            try:
                # Steps run asynchronously: an out-of-memory error may be raised wherever a result is waited for.
                with explained(trainer.layout, trainer.mesh, trainer.needed):
                    return _Loop(trainer, everyone, progress or Progress()).run()
            except Exception as error:
                everyone.failed(error)
                raise
    except OSError as error:
        if not is_of_file(error):
            raise
        raise TrainingError(
            f"{named(error.filename or 'a file')} of run {trainer.config.run.name!r} cannot be used ({reason(error)}): "
            "the run stopped; once that is fixed, the same command continues it from its newest checkpoint"
        ) from error


class _Loop:
    """One call of `fit`: its counters and open resources."""

    def __init__(self, trainer: Run, listeners: Listener, progress: Progress):
        self.trainer, self.listeners = trainer, listeners
        self.config, self.timer = trainer.config, trainer.timer
        self.folder = RunFolder(self.config)
        self.mirror = mirror_of(self.config, self.folder.path)
        self.saves = Saves(self.folder.checkpoints, self.config.checkpoint, listeners, self.mirror)
        self.progress = progress
        limits = {key: one for kind in trainer.layout.carried.values() for key, one in kind.limits.items()}
        self.monitor = AnomalyMonitor(self.config, trainer.layout.order, listeners, limits)
        self.logged = 0
        """Last step that was logged; 0 before the first of this process."""
        self.clock = SaveClock(self.config.checkpoint.every_minutes)
        self.baseline: float | None = None
        self.compiled: set[str] = set()
        """Programs that this process has compiled so far."""

    def run(self) -> Summary:
        with ExitStack() as last:  # each is called whatever the ones before it do
            for close in (self.folder.release, self.saves.close, self.trainer.close):
                last.callback(close)
            if self.mirror is None:
                self._check_first_weights()
                return self._run(self._claim())
            changes = self._claim(fetching(self.mirror))
            self._check_first_weights()
            with mirrored(self.mirror, self.listeners):
                return self._run(changes)

    def _check_first_weights(self) -> None:
        if self.config.run.init_from is not None and from_first(self.folder.starts_over):
            liveness.at("looking into run.init_from", busy=True)
            self.trainer.models.first  # noqa: B018 (refused, where it does not fit, before a file is written)

    def _claim(self, fetch: Callable[[], str | None] | None = None) -> list[str]:
        """Lock the run's folder, and fetch what it lacks; returns how the configuration has changed."""
        liveness.at("looking into its folder" if fetch is None else "looking into its folder and run.mirror")
        changes, notices = from_first(lambda: self.folder.claim(fetch))
        for notice in notices:
            self.listeners.message(notice)
        return changes

    def _run(self, changes: list[str]) -> Summary:
        liveness.at("restoring a checkpoint")
        restored = self._restore()
        if self.config.run.init_optimizer and not restored and not self.trainer.steps_done:
            self.trainer.take_over(self.listeners.message)
        if not restored:
            self.trainer.provide_reference(self.listeners)
            self._report_first_weights()
        done = self.trainer.steps_done
        if done >= self.config.run.steps and (earlier := from_first(self._summary)) is not None:
            self.folder.check_nothing_else_asked(done, changes)
            self.listeners.message(
                f"{self.folder.path} already has its {plural(done, 'step')}, and nothing was changed; "
                "raise run.steps to go on, or choose another run.name."
            )
            return Summary(**earlier)
        self._announce(done + 1, changes, "" if restored else self.trainer.taken_over)
        with termination() as signals:
            self.trainer.stops = signals.asked
            stopped = self._train(done + 1, signals)
            liveness.at("waiting for the last save")
            self.saves.finish()
            if stopped:
                self.listeners.message(
                    f"Stopped by {signals.by} after step {stopped} of {self.config.run.steps}, which is saved; the "
                    f"same command continues with step {stopped + 1}."
                )
            return self._finish()

    def _summary(self) -> dict[str, Any] | None:
        return self.folder.summary(self.listeners.message)

    def _train(self, first: int, signals: Termination) -> int | None:
        """Take the steps from `first` on; the step after which it was asked to stop, if it was."""
        steps, number, previous = self.config.run.steps, first, None
        self.timer.turn()
        self.clock.start(first)
        with self._profile() as profile:
            while number <= steps:
                liveness.at(f"in step {number}", in_step=True)
                if profile is not None:
                    profile.before_step(number)
                with step_annotation(number):
                    metrics = self.trainer.step()
                self.progress.dispatched(self.trainer.last_pairs, self.trainer.last_metrics)
                if profile is not None:
                    if profile.stops_after(number):
                        liveness.at("writing a profile")
                    profile.after_step(number, metrics)
                # The step before is logged while this one runs; this one is void if that goes back to a checkpoint.
                if previous is not None and (reached := self._complete(number - 1, previous)) != number - 1:
                    number, previous = reached + 1, None
                    continue
                previous = metrics
                stop = signals.asked() and number < steps
                # A step that is over when the call returns leaves nothing to overlap its logging with.
                over = not self.trainer.functions.residency.asynchronous
                if over or number in (first, steps) or self._pauses(number) or self.clock.looks(number) or stop:
                    number, previous = self._complete(number, metrics, stop), None
                if stop:
                    return number
                number += 1
        return None

    def _restore(self) -> bool:
        """Continue from the newest checkpoint; False where there is none."""
        done = self.trainer.steps_done
        restored = self.saves.restore(self.trainer.saved.abstract, self.trainer.layout.carried, self._check_saved)
        if restored is None:
            from_first(self.folder.check_nothing_saved)
            return False
        state, facts = restored
        notice = self.trainer.continue_from(state, facts)
        liveness.restarted()
        self.progress.restore(facts)
        if done > (newest := self.trainer.steps_done):
            self.listeners.message(
                f"Continuing from the checkpoint of step {newest}, without the "
                f"{plural(done - newest, 'later step')} not saved."
            )
        if (monitored := facts.get(MONITOR)) is not None:
            self.monitor.restore(monitored)
        if notice is not None:
            self.listeners.message(notice)
        elif facts["data"] != self.trainer.data.description:
            self.listeners.message(
                f"The data is not what the run began with: {facts['data']}; now {self.trainer.data.description}."
            )
        return True

    def _check_saved(self, step: int, facts: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another reference, which takes memory and time before there is a state."""
        self.trainer.models.check_reference(facts)
        self.trainer.provide_reference(self.listeners, (step, facts))
        liveness.at("restoring a checkpoint")

    def _report_first_weights(self) -> None:
        """Report where the weights of a new run come from, and what it changes of that model."""
        source = self.trainer.models.first
        if source is not None:
            self.trainer.came_from = source.lineage
            changed = "; ".join(map(str, self.trainer.models.differences))
            but = f"; it has another value here: {changed}" if changed else ""
            self.listeners.message(f"The first weights are those of {source.path} ({source.description}){but}.")

    def _announce(self, first: int, changes: list[str], taken_over: str) -> None:
        """Write what the run begins with, and compile; `taken_over` is about the other run that took its steps."""
        trainer, config, recorded = self.trainer, self.config, 0 if taken_over else first - 1
        liveness.at("writing its folder")
        from_first(lambda: self.folder.check_metrics(recorded, self.listeners.message))
        otherwise = recorded > 0 and from_first(lambda: self.folder.ran_otherwise(trainer.plan))
        from_first(lambda: self.folder.write(trainer.plan, first - 1))
        self.baseline = trainer.baseline()
        self.listeners.start(
            RunInfo(
                config=config_to_dict(config),
                plan=asdict(trainer.plan),
                rows=plan_rows(trainer.layout, trainer.mesh, trainer.data.description),
                brief=[*plan_brief(trainer.layout, trainer.mesh, trainer.data.description), *trainer.brief()],
                folder=str(self.folder.path),
                steps=config.run.steps,
                first_step=first,
                baseline_loss=self.baseline,
                came_from=trainer.came_from,
            )
        )
        notes = start_notes(trainer, first, changes, str(self.folder.path) if otherwise else None)
        for note in filter(None, (taken_over, *notes)):
            self.listeners.message(note)
        if first > config.run.steps:
            return
        if "compiled" not in vars(trainer):
            self._compiling("the training step")
        liveness.at("compiling the step")
        if first == 1:
            trainer.compile_with_initial()
        else:
            trainer.compiled  # noqa: B018 (compiles now, so that time and memory can be reported)
        trainer.compile_smaller()
        # On CPUs, Gloo waits for a process that still compiles no longer than 30 s.
        liveness.at("waiting until all have compiled the step")
        gather("", timeout_s=max(PATIENCE_S, config.distributed.pause_timeout_s))
        need = trainer.predicted_bytes
        memory = "" if need is None else f"; the step needs {size(need)} per device"
        self.listeners.message(f"Compiled in {seconds(self.timer.compile_seconds)}{memory}.")
        if first == 1:
            self._compiling("the initial weights")
            liveness.at("making the initial weights")
            trainer.state  # noqa: B018 (made now, while the line above reports it)

    def _pauses(self, number: int) -> bool:
        """Whether an evaluation or a save comes before the next step."""
        cadences = (self.config.evaluation.every, self.config.checkpoint.every)
        return any(every and number % every == 0 for every in cadences)

    def _complete(self, number: int, metrics: StepMetrics, stop: bool = False) -> int:
        """Wait for a step, count it, and log, evaluate and save what is due after it.

        Returns the step that the run has reached: `number`, or that of the checkpoint to which it went back.
        """
        spike = self._account(number, metrics)
        self.saves.report_complete()
        if spike is not None and (checkpoint := self._roll_back(number, spike)):
            return checkpoint
        if self.clock.looks(number):
            liveness.at(f"deciding whether to save after step {number}")
        every = self.config.checkpoint.every
        ends = number == self.config.run.steps or stop
        save = self.clock.due(number) or ends or (every > 0 and number % every == 0)
        if save or self.logged == 0 or number % self.config.run.log_every == 0 or self._pauses(number):
            self._milestone(number, metrics, stop=stop, save=save)
        return number

    def _roll_back(self, number: int, spike: Spike) -> int | None:
        """Handle a spike at step `number`; the step of the checkpoint to which the run went back, if it did."""
        if self.config.watch.on_spike == "report":
            self.monitor.report(number, spike)
            return None
        liveness.at("waiting for the last save")
        newest, before = self.saves.newest_step, self.trainer.left_out
        left_out = self.monitor.batches_to_leave_out(number, spike, newest, before) if newest else before
        if not newest or self.trainer.lacks_rows(left_out):
            because = "data.max_epochs has no rows for others" if newest else "nothing is saved yet to go back to"
            self.monitor.report(number, spike, because=f"{because}, and ")
            return None
        rollbacks = self.monitor.rollbacks + 1
        liveness.at("restoring a checkpoint")
        self.timer.lap()
        with self.timer.paused():
            self.trainer.drop_state()
            if not self._restore():
                raise TrainingError(f"no checkpoint in {self.folder.checkpoints} can be used: the run stopped")
        self.trainer.left_out, self.logged = left_out, self.trainer.steps_done
        added = sorted(set(left_out) - set(before))
        self.monitor.rolled_back(number, spike, self.logged, rollbacks, added)
        self.clock.restart(self.logged + 1)
        self.listeners.rewound(self.logged)
        return self.logged

    def _account(self, number: int, metrics: StepMetrics) -> Spike | None:
        """Wait for a step and count it; returns a spike if its loss is one."""
        liveness.at(f"waiting for step {number}", in_step=True)
        with self.timer.waiting():
            finite, tokens, loss = jax.device_get((metrics.finite, metrics.tokens, metrics.loss))
        turn = self.timer.turn()
        liveness.stepped(turn.seconds)
        self.monitor.step(number, turn)
        self.progress.counted(float(tokens), finite=bool(finite))
        if finite and tokens:
            # A loss of rewards is about 0 whatever the model learns.
            return None if OBJECTIVES[self.config.loss.name].rewards else self.monitor.loss(float(loss))
        if finite:
            self.monitor.empty(number)
            return None
        liveness.at(f"looking into step {number}")
        weights = self.trainer.functions.residency.readable(self.trainer.state.master)
        self.monitor.skipped(number, metrics, weights, self.saves.newest)
        return None

    def _milestone(self, number: int, metrics: StepMetrics, *, stop: bool, save: bool) -> None:
        """Log step `number`, and evaluate and save after it if that is due."""
        liveness.at(f"logging step {number}")
        config, last = self.config, self.config.run.steps
        lap = self.timer.lap(number - self.logged if self.logged else None)
        self.logged = number
        data_wait = self.monitor.logged(number)
        every = config.evaluation.every
        if self.trainer.evaluates and not stop and (number == last or (every and number % every == 0)):
            self._evaluate(number)
        record = self.progress.record(self.trainer, number, metrics, lap, data_wait)
        self.monitor.features(number, record)
        self.listeners.step(record)
        if save:
            liveness.at(f"saving step {number}")
            with self.timer.paused():
                self._save(number, int(metrics.skipped_in_row), must=stop or number == last)

    def _evaluate(self, number: int) -> None:
        self._compiling("the evaluation")
        liveness.at(f"evaluating after step {number}")
        with self.timer.paused():
            metrics = self.trainer.evaluation()
            loss = metrics.pop("loss", None)
            if loss is None:
                self.listeners.message("Nothing of the held-out data has a loss: this step is not evaluated.")
                return
            self.progress.evaluated(number, loss, metrics)
            self.listeners.evaluation(number, loss, self.baseline)
            for prompt, continuation in self.trainer.samples:
                self.listeners.sample(prompt, continuation)

    def _compiling(self, what: str) -> None:
        """Announce what is compiled now, unless this process has compiled it before."""
        if what not in self.compiled:
            self.compiled.add(what)
            self.listeners.message(f"Compiling {what} ...")

    def _save(self, number: int, skipped_in_row: int, *, must: bool) -> None:
        facts = checkpoint_facts(self.trainer, self.progress, skipped_in_row) | {MONITOR: self.monitor.facts()}
        self.clock.saved()
        self.saves.begin(number, self.trainer.saved.outgoing(without_frozen(self.trainer.state)), facts, must=must)

    def _finish(self) -> Summary:
        """Sample and summarize."""
        liveness.at("finishing")
        trainer, timer, config = self.trainer, self.timer, self.config
        finished = trainer.steps_done >= config.run.steps
        if finished and config.evaluation.sample_tokens and trainer.data.heldout is not None:
            self._compiling("the model for a sample")
            try:
                self.listeners.sample(*sample_heldout(trainer))
            except NotFinite as error:  # The steps are done: only the sample is missing.
                self.listeners.message(f"There is no sample: {error}.")
        summary = Summary(
            steps=trainer.steps_done,
            loss=self.progress.loss,
            eval_loss=self.progress.heldout_loss(trainer.steps_done),
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

    @contextmanager
    def _profile(self) -> Iterator[ProfileWindow | None]:
        if self.config.run.profile is None:
            yield None
            return
        folder = self.folder.path / "profile" / f"process-{jax.process_index()}"
        window = ProfileWindow(*profile_steps(self.config.run.profile), str(folder))
        try:
            yield window
        finally:
            window.close()
