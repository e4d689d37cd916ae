"""The training loop: how a run begins, takes its steps, goes back to a checkpoint, and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from typing import Any

import jax

from jaxpar.checkpoint.errors import is_file_error, reason
from jaxpar.checkpoint.facts import MONITOR
from jaxpar.checkpoint.processes import PATIENCE_S, gather, run_on_process_0
from jaxpar.config.checks.run import profile_steps
from jaxpar.config.parts import OBJECTIVES
from jaxpar.config.spelling import named
from jaxpar.distributed import liveness
from jaxpar.observe.events import Listener, Listeners, Summary
from jaxpar.observe.profile import ProfileWindow, step_annotation
from jaxpar.observe.spikes import Spike
from jaxpar.pages.units import plural, seconds, size
from jaxpar.training.errors import TrainingError
from jaxpar.training.monitor.anomaly_monitor import AnomalyMonitor
from jaxpar.training.run.milestones import Milestones
from jaxpar.training.run.out_of_memory import explained
from jaxpar.training.run.plan_brief import report_first_weights, run_info, start_notes
from jaxpar.training.run.progress import Progress
from jaxpar.training.run.run import Run
from jaxpar.training.run_folder.folder import RunFolder
from jaxpar.training.run_folder.mirroring import fetching, mirror_of, mirrored
from jaxpar.training.run_folder.saves import Saves
from jaxpar.training.step.forward_backward import StepMetrics
from jaxpar.training.termination import Termination, termination


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
        if not is_file_error(error):
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
        self.milestones = Milestones(trainer, listeners, progress, self.monitor, self.saves)

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
        if self.config.run.init_from is not None and run_on_process_0(self.folder.starts_over):
            liveness.report_activity("looking into run.init_from", busy=True)
            self.trainer.models.first  # noqa: B018 (refused, where it does not fit, before a file is written)

    def _claim(self, fetch: Callable[[], str | None] | None = None) -> list[str]:
        """Lock the run's folder, and fetch what it lacks; returns how the configuration has changed."""
        liveness.report_activity(
            "looking into its folder" if fetch is None else "looking into its folder and run.mirror"
        )
        changes, notices = run_on_process_0(lambda: self.folder.claim(fetch))
        for notice in notices:
            self.listeners.message(notice)
        return changes

    def _run(self, changes: list[str]) -> Summary:
        liveness.report_activity("restoring a checkpoint")
        restored = self._restore()
        if self.config.run.init_optimizer and not restored and not self.trainer.steps_done:
            self.trainer.take_over(self.listeners.message)
        if not restored:
            self.trainer.provide_reference(self.listeners)
            report_first_weights(self.trainer, self.listeners.message)
        done = self.trainer.steps_done
        if done >= self.config.run.steps and (earlier := run_on_process_0(self._summary)) is not None:
            self.folder.check_finished_unchanged(done, changes)
            self.listeners.message(
                f"{self.folder.path} already has its {plural(done, 'step')}, and nothing was changed; "
                "raise run.steps to go on, or choose another run.name."
            )
            return Summary(**earlier)
        self._announce(done + 1, changes, "" if restored else self.trainer.taken_over)
        with termination() as signals:
            self.trainer.stops = signals.requested
            stopped = self._train(done + 1, signals)
            liveness.report_activity("waiting for the last save")
            self.saves.finish()
            if stopped:
                self.listeners.message(
                    f"Stopped by {signals.by} after step {stopped} of {self.config.run.steps}, which is saved; the "
                    f"same command continues with step {stopped + 1}."
                )
            return self.milestones.finish()

    def _summary(self) -> dict[str, Any] | None:
        return self.folder.summary(self.listeners.message)

    def _train(self, first: int, signals: Termination) -> int | None:
        """Take the steps from `first` on; the step after which it was asked to stop, if it was."""
        steps, step, previous = self.config.run.steps, first, None
        self.timer.turn()
        self.milestones.clock.start(first)
        with self._profile() as profile:
            while step <= steps:
                liveness.report_activity(f"in step {step}", in_step=True)
                if profile is not None:
                    profile.before_step(step)
                with step_annotation(step):
                    metrics = self.trainer.step()
                self.progress.dispatched(self.trainer.last_pairs, self.trainer.last_metrics)
                if profile is not None:
                    if profile.stops_after(step):
                        liveness.report_activity("writing a profile")
                    profile.after_step(step, metrics)
                # The step before is logged while this one runs; this one is void if that goes back to a checkpoint.
                if previous is not None and (reached := self._complete(step - 1, previous)) != step - 1:
                    step, previous = reached + 1, None
                    continue
                previous = metrics
                stop = signals.requested() and step < steps
                # A step that is over when the call returns leaves nothing to overlap its logging with.
                over = not self.trainer.functions.residency.asynchronous
                if over or step in (first, steps) or self.milestones.due_after(step) or stop:
                    step, previous = self._complete(step, metrics, stop), None
                if stop:
                    return step
                step += 1
        return None

    def _restore(self) -> bool:
        """Continue from the newest checkpoint; False where there is none."""
        done = self.trainer.steps_done
        restored = self.saves.restore(self.trainer.saved.abstract, self.trainer.layout.carried, self._check_saved)
        if restored is None:
            run_on_process_0(self.folder.check_no_checkpoint)
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
        liveness.report_activity("restoring a checkpoint")

    def _announce(self, first: int, changes: list[str], taken_over: str) -> None:
        """Write the run's folder, report its plan, and compile; `taken_over` is about the run of earlier steps."""
        trainer, recorded = self.trainer, 0 if taken_over else first - 1
        liveness.report_activity("writing its folder")
        run_on_process_0(lambda: self.folder.check_metrics(recorded, self.listeners.message))
        otherwise = recorded > 0 and run_on_process_0(lambda: self.folder.plan_changed(trainer.plan))
        run_on_process_0(lambda: self.folder.write(trainer.plan, first - 1))
        self.milestones.baseline = trainer.baseline()
        self.listeners.start(run_info(trainer, first, str(self.folder.path), self.milestones.baseline))
        notes = start_notes(trainer, first, changes, str(self.folder.path) if otherwise else None)
        for note in filter(None, (taken_over, *notes)):
            self.listeners.message(note)
        if first <= self.config.run.steps:
            self._compile(first)

    def _compile(self, first: int) -> None:
        """Compile the step, and make the initial weights of a run that begins with step 1."""
        trainer = self.trainer
        if "compiled" not in vars(trainer):
            self.milestones.announce_compiling("the training step")
        liveness.report_activity("compiling the step")
        if first == 1:
            trainer.compile_with_initial()
        else:
            trainer.compiled  # noqa: B018 (compiles now, so that time and memory can be reported)
        trainer.compile_smaller()
        # On CPUs, Gloo waits for a process that still compiles no longer than 30 s.
        liveness.report_activity("waiting until all have compiled the step")
        gather("", timeout_s=max(PATIENCE_S, self.config.distributed.pause_timeout_s))
        need = trainer.predicted_bytes
        memory = "" if need is None else f"; the step needs {size(need)} per device"
        self.listeners.message(f"Compiled in {seconds(self.timer.compile_seconds)}{memory}.")
        if first == 1:
            self.milestones.announce_compiling("the initial weights")
            liveness.report_activity("making the initial weights")
            trainer.state  # noqa: B018 (made now, while the line above reports it)

    def _complete(self, step: int, metrics: StepMetrics, stop: bool = False) -> int:
        """Wait for a step, count it, and log, evaluate and save what is due after it.

        Returns the step that the run has reached: `step`, or that of the checkpoint to which it went back.
        """
        spike = self._account(step, metrics)
        self.saves.report_complete()
        if spike is not None and (checkpoint := self._roll_back(step, spike)):
            return checkpoint
        self.milestones.after(step, metrics, stop=stop)
        return step

    def _roll_back(self, step: int, spike: Spike) -> int | None:
        """Handle a spike at step `step`; the step of the checkpoint to which the run went back, if it did."""
        if self.config.watch.on_spike == "report":
            self.monitor.report(step, spike)
            return None
        liveness.report_activity("waiting for the last save")
        newest, before = self.saves.newest_step, self.trainer.left_out
        left_out = self.monitor.batches_to_leave_out(step, spike, newest, before) if newest else before
        if not newest or self.trainer.lacks_rows(left_out):
            because = "data.max_epochs has no rows for others" if newest else "nothing is saved yet to go back to"
            self.monitor.report(step, spike, because=f"{because}, and ")
            return None
        rollbacks = self.monitor.rollbacks + 1
        liveness.report_activity("restoring a checkpoint")
        self.timer.lap()
        with self.timer.paused():
            self.trainer.drop_state()
            if not self._restore():
                raise TrainingError(f"no checkpoint in {self.folder.checkpoints} can be used: the run stopped")
        self.trainer.left_out, reached = left_out, self.trainer.steps_done
        self.milestones.logged = reached
        added = sorted(set(left_out) - set(before))
        self.monitor.rolled_back(step, spike, reached, rollbacks, added)
        self.milestones.clock.restart(reached + 1)
        self.listeners.rewound(reached)
        return reached

    def _account(self, step: int, metrics: StepMetrics) -> Spike | None:
        """Wait for a step and count it; returns a spike if its loss is one."""
        liveness.report_activity(f"waiting for step {step}", in_step=True)
        with self.timer.waiting():
            finite, tokens, loss = jax.device_get((metrics.finite, metrics.tokens, metrics.loss))
        turn = self.timer.turn()
        liveness.stepped(turn.seconds)
        self.monitor.step(step, turn)
        self.progress.counted(float(tokens), finite=bool(finite))
        if finite and tokens:
            return self.monitor.loss(float(loss)) if OBJECTIVES[self.config.loss.name].judged else None
        if finite:
            self.monitor.empty(step)
            return None
        liveness.report_activity(f"looking into step {step}")
        weights = self.trainer.functions.residency.readable(self.trainer.state.master)
        self.monitor.skipped(step, metrics, weights, self.saves.newest)
        return None

    def _profile(self) -> AbstractContextManager[ProfileWindow | None]:
        if self.config.run.profile is None:
            return nullcontext()
        folder = self.folder.path / "profile" / f"process-{jax.process_index()}"
        return closing(ProfileWindow(*profile_steps(self.config.run.profile), str(folder)))
