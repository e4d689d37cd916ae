"""The folder of a run: which run it holds, and whether this one may continue in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxpar.checkpoint.folders import CHECKPOINTS, listed_steps, step_folder
from jaxpar.checkpoint.manifest import MANIFEST
from jaxpar.config import Config, UserError, config_difference, config_to_yaml, load_config
from jaxpar.config.paths import RUN_CONFIG
from jaxpar.config.plan import Plan
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import quoted
from jaxpar.layout.plan_file import PlanFile, read
from jaxpar.observe.files import remove_leftovers, write_atomically
from jaxpar.observe.writers.jsonl import METRICS_FILE, read_metrics
from jaxpar.observe.writers.summary import SUMMARY_FILE, read_summary
from jaxpar.pages.units import plural
from jaxpar.training.run_folder.checkpoint_ownership import check_checkpoints
from jaxpar.training.run_folder.lock import RunLock
from jaxpar.training.run_folder.same_run import forbidden_changes

PLAN = "plan.json"

NO_MATTER = ("run.", "checkpoint.", "watch.", "distributed.", "data.prefetch")
"""Prefixes of changes that have no effect on a run that has all its steps."""


class RunFolder:
    """`<run.dir>/<run.name>`: the resolved configuration, the plan, and what the run writes."""

    def __init__(self, config: Config):
        self.config = config
        self.path = Path(config.run.dir).expanduser() / config.run.name
        self._lock = RunLock(self.path)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / CHECKPOINTS

    def claim(self, fetch: Callable[[], str | None] | None = None) -> tuple[list[str], list[str]]:
        """Lock the folder until `release`, and `fetch` what it lacks; returns `changes()`, and sentences for the user.

        Raises `UserError` where another job is using it, and as `changes` and `fetch`.
        """
        # Any other folder is refused before a file is put into it.
        self.changes(may_come=fetch is not None)
        try:
            notices = [self._lock.take()]
            if self._lock.locked:
                remove_leftovers(self.path)
            if fetch is not None:
                notices.append(fetch())
        except OSError as error:
            raise self._unwritable(error) from error
        return self.changes(), [one for one in notices if one is not None]  # Another job may have run in it since.

    def release(self) -> None:
        """Release the folder to other jobs."""
        self._lock.release()

    def changes(self, *, may_come: bool = False) -> list[str]:
        """Differences of `config` from the folder's configuration; empty for a new folder.

        Raises `UserError` where the difference makes it another run, the folder holds something else, or its
        checkpoints are another run's, or gone unless they `may_come` from a mirror.
        """
        file = self.path / RUN_CONFIG
        try:
            if not file.exists():
                self._check_new()
                return []
        except OSError as error:
            raise UserError(
                f"run.dir is {quoted(self.config.run.dir)}: {self.path} cannot be read ({error.strerror})"
            ) from error
        recorded = self._recorded(file)
        if forbidden := forbidden_changes(recorded, self.config):
            raise UserError(
                f"run.name is {quoted(self.config.run.name)}: {self.path} belongs to a run with another configuration "
                f"({'; '.join(forbidden)}); choose another run.name, or restore these values to continue it"
            )
        check_checkpoints(self.path, self.config, may_come=may_come)
        return config_difference(recorded, self.config)

    def _recorded(self, file: Path) -> Config:
        """The configuration that the folder was made with."""
        try:
            if file.stat().st_size == 0:
                raise UserError(f"{file}: empty")
            return load_config(str(file))
        except UserError as error:
            raise UserError(
                f"run.name is {quoted(self.config.run.name)}: the record of what was run is damaged ({error}); put "
                f"a copy of {RUN_CONFIG} back (facts.json of a checkpoint has its values), or move {self.path} away "
                "to start over; where another version of jaxpar wrote it, give its keys the names of today"
            ) from None

    def _check_new(self) -> None:
        """Hidden files do not count: a kill may leave part of the first file under a hidden name."""
        if self.path.exists() and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise UserError(
                f"run.name is {quoted(self.config.run.name)}: {self.path} exists and is not a run of jaxpar (it has no "
                f"{RUN_CONFIG}); choose another run.name or run.dir"
            )

    def starts_over(self) -> bool:
        """Whether no step has a checkpoint. False where that cannot be read: the restore reports why."""
        try:
            return not listed_steps(self.checkpoints)
        except OSError:
            return False

    def check_no_checkpoint(self) -> None:
        """Raises `UserError` when a checkpoint was complete once: starting over would overwrite the run's record."""
        steps = listed_steps(self.checkpoints)
        complete = [step for step in steps if (step_folder(self.checkpoints, step) / MANIFEST).exists()]
        if complete:
            raise UserError(
                f"run.name is {quoted(self.config.run.name)}: {self.checkpoints} has no checkpoint that can be "
                f"used, and that of step {complete[-1]} was complete once; repair it, or move {self.path} away to "
                "start over"
            )

    def check_finished_unchanged(self, done: int, changes: Sequence[str]) -> None:
        """Raises `UserError` where a run that has all its steps is started again with changes that would matter."""
        asked = [line for line in changes if not line.startswith(NO_MATTER)]
        if asked:
            raise UserError(
                f"run.name is {quoted(self.config.run.name)}: {self.path} already has its {plural(done, 'step')}, so "
                f"nothing would be done with what is asked for now ({'; '.join(asked)}); choose another run.name to "
                f"train with it (--set run.name=...), or raise run.steps beyond {done} to go on with it"
            )

    def summary(self, report: Callable[[str], None]) -> dict[str, Any] | None:
        """The content of `summary.json`; None where the run has not reached its end, or the file is damaged.

        Args:
            report: called with a message about damage. The run then ends once more, and writes the file again.
        """
        file = self.path / SUMMARY_FILE
        if not file.exists():
            return None
        summary = read_summary(file)
        if summary is None:
            report(f"{file} is damaged: it is not used, and is written again.")
            return None
        return summary if summary["steps"] >= self.config.run.steps else None

    def check_metrics(self, step: int, report: Callable[[str], None]) -> None:
        """Call `report` if `metrics.jsonl` does not reach the checkpoint of `step`, from which the run continues.

        Raises `UserError` where it is damaged before that.
        """
        file = self.path / METRICS_FILE
        if not file.exists():
            if step:
                report(
                    f"{file} does not exist, and the checkpoint is of step {step}: steps taken by Trainer.step write "
                    "no records, and records that were there are lost."
                )
            return
        steps = [values["step"] for values in read_metrics(file, before=step + 1)]
        if step and (not steps or steps[-1] != step):
            length = f"ends with step {steps[-1]}" if steps else "is empty"
            report(f"{file} {length}, and the checkpoint is of step {step}: what lies between is lost to the record.")

    def plan_changed(self, plan: Plan) -> bool:
        """Whether the last start had another plan; False where its file cannot be read."""
        try:
            last = read(self.path / PLAN)
        except UserError:
            return False
        return last.plan != plan

    def write(self, plan: Plan, step: int) -> None:
        """Write configuration and plan; those of an earlier start that differ are kept under names with `step`.

        An existing file of that name is kept: the plan of an earlier start is only for people to read.

        Raises `UserError` when the folder cannot be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            texts = ((RUN_CONFIG, config_to_yaml(self.config)), (PLAN, PlanFile(self.config, plan).to_json()))
            for name, new in ((name, text.encode()) for name, text in texts):
                file = self.path / name
                if file.exists() and (old := read_file(file)) != new:
                    stem, suffix = name.split(".")
                    copy = self.path / f"{stem}-until-{step}.{suffix}"
                    # An existing one belongs to the start that made these steps; the last start made none.
                    if not copy.exists():
                        write_atomically(copy, old)
                write_atomically(file, new)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(f"run.dir is {quoted(self.config.run.dir)}: {self.path} cannot be written ({error.strerror})")
