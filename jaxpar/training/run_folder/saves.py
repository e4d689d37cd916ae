"""The checkpoints of a run during training: written in the background, and reported when complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from jaxpar.checkpoint import Checkpointer, CheckpointError
from jaxpar.checkpoint.facts import CARRIED, check_run_facts, skipped_in_row
from jaxpar.checkpoint.folders import step_folder
from jaxpar.config import CheckpointConfig
from jaxpar.layout.state import TrainState
from jaxpar.memory.disk_array import copied
from jaxpar.observe.events import Listener
from jaxpar.optim.optimizer import AVERAGE
from jaxpar.pages.units import plural
from jaxpar.runtime.carried import Carried
from jaxpar.training.run_folder.mirror import Mirror


class Saves:
    """Saves and restores the state of a run; a save that fails costs that checkpoint and not the run.

    All calls but `report_complete` are collective over the processes of a job.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, listeners: Listener, mirror: Mirror | None = None):
        self._folder, self._listeners, self._mirror = folder, listeners, mirror
        self._checkpointer = Checkpointer(
            folder,
            keep_last=config.keep_last,
            keep_every=config.keep_every,
            report=listeners.message,
            spared=lambda: None if mirror is None else mirror.uploading,
        )
        self._newest = 0
        """Step of the newest complete checkpoint; 0 for none."""
        self._coming = 0
        """Step of the checkpoint being written; 0 for none."""
        self._healthy = 0
        """Step of the newest healthy checkpoint, saved after a step that was applied; 0 for none."""
        self._skipped: dict[int, int] = {}
        """Step of each checkpoint that this process saved or restored, to the steps in a row that had been skipped."""

    def restore(
        self, like: TrainState, carried: Mapping[str, Carried[PyTree]], check: Callable[[int, dict[str, object]], None]
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest intact state, laid out as `like` with this `carried` state, and the facts saved with it; None
        where there is none.

        `check` is called with the step and the facts before the state takes memory; it raises an error to refuse them.
        Raises `CheckpointError` when the folder cannot be read, or what is saved does not fit `like`.
        """
        newest = self._checkpointer.latest()
        if newest is None:
            return None
        check(newest, _run_facts(self._checkpointer, newest))
        state, facts = read_state(self._checkpointer, newest, like, carried, self._listeners.message)
        self._newest, self._skipped[newest] = newest, skipped_in_row(facts)
        self._healthy = newest
        if skipped := self._skipped[newest]:
            self._healthy = self._checkpointer.last_healthy(newest) or 0
            back = "; to go back to it, move the newer ones away" if self._healthy else ""
            self._listeners.message(
                f"The run continues from {self._name(newest)}, which was saved after {_steps(skipped)}; "
                f"{self._last_healthy()}{back}."
            )
        return state, facts

    @property
    def newest_step(self) -> int:
        """Step of the newest complete checkpoint, 0 for none; waits for the one being written."""
        self._settle()
        return self._newest

    def begin(self, step: int, state: TrainState, facts: dict[str, object], *, must: bool) -> None:
        """Begin to save in the background, once the previous save is over; a failure of that one is reported.

        Raises `CheckpointError` when this one cannot be started and `must` is set.
        """
        self._settle()
        try:
            self._checkpointer.save(step, state, facts)
            self._coming, self._skipped[step] = step, skipped_in_row(facts)
        except CheckpointError as error:
            if must:
                raise
            self._listeners.message(f"{error}; training goes on.")

    def report_complete(self) -> None:
        """Report the checkpoint being written if it is complete. The call that waits for it reports a failure."""
        for note in self._mirror.notes() if self._mirror is not None else ():
            self._listeners.message(note)
        if self._coming not in (0, self._newest) and self._checkpointer.complete:
            self._report(self._coming)

    def finish(self) -> None:
        """Wait for the checkpoint being written. Raises `CheckpointError` when it failed."""
        coming, self._coming = self._coming, 0
        self._checkpointer.wait()
        if coming not in (0, self._newest):
            self._report(coming)

    def newest(self) -> str:
        """Words for where the newest complete checkpoint is, and the newest healthy one where that is another."""
        self._settle()
        if not self._newest:
            return "nothing was saved"
        words = f"the newest checkpoint is {step_folder(self._folder, self._newest)}"
        if skipped := self._skipped[self._newest]:
            words += f", which was saved after {_steps(skipped)}; {self._last_healthy()}"
        return words

    def close(self) -> None:
        """Release the threads, waiting for the checkpoint being written.

        With several processes that takes all of them: a process that fails alone during a save does not wait.
        """
        if not self._coming or jax.process_count() == 1:
            self._checkpointer.close()

    def _settle(self) -> None:
        try:
            self.finish()
        except CheckpointError as error:
            self._listeners.message(f"{error}; training goes on.")

    def _report(self, step: int) -> None:
        self._newest = step
        if self._mirror is not None:
            self._mirror.saved(step)
        self._listeners.saved(step, str(step_folder(self._folder, step)))
        if skipped := self._skipped[step]:
            text = f"{self._name(step)} was saved after {_steps(skipped)}; {self._last_healthy()}"
            self._listeners.message(f"{text}, and no checkpoint is deleted until a step is applied.")
        else:
            self._healthy = step

    def _last_healthy(self) -> str:
        if not self._healthy:
            return "there is no healthy checkpoint"
        return f"the last healthy checkpoint is {self._name(self._healthy)}"

    def _name(self, step: int) -> str:
        """The name of a checkpoint for messages."""
        return f"{self._folder.name}/{step_folder(self._folder, step).name}"


def _steps(skipped: int) -> str:
    return plural(skipped, "skipped step")


def read_state(
    checkpointer: Checkpointer,
    step: int,
    like: TrainState,
    carried: Mapping[str, Carried[PyTree]],
    report: Callable[[str], None],
) -> tuple[TrainState, dict[str, Any]]:
    """The state that was saved at `step`, laid out as `like`, and the facts saved with it.

    Carried state begins anew, and `report` takes a sentence, where the saved one has other shapes or describes
    something else. A moving average of the weights may be turned on, and begins with the weights, or off. Raises
    `CheckpointError` when the state cannot be read, or does not fit `like`.
    """
    facts = _run_facts(checkpointer, step)
    described = facts[CARRIED]
    wanted = {
        name: expected for name, expected in like.carried.items() if described.get(name) == carried[name].saved_as
    }
    optional = [f"optimizer/{AVERAGE}", *(f"carried/{name}" for name in {**described, **wanted})]
    state = checkpointer.restore(step, like._replace(carried=wanted), optional=optional)
    if AVERAGE in like.optimizer and not jax.tree.leaves(state.optimizer[AVERAGE]):
        state = state._replace(optimizer={**state.optimizer, AVERAGE: jax.tree.map(copied, state.master)})
        report(f"The moving average of the weights begins with those of step {step}.")
    restored = {}
    for name, expected in like.carried.items():
        restored[name] = state.carried.get(name)
        if jax.tree.leaves(expected) and not jax.tree.leaves(restored[name]):
            restored[name] = _initial(carried[name], expected)
            report(f"The {carried[name].title} begins anew: step {step} was saved without it, or with another one.")
    return state._replace(carried=restored), facts | checkpointer.contents(step)


def _run_facts(checkpointer: Checkpointer, step: int) -> dict[str, Any]:
    facts = checkpointer.facts(step)
    check_run_facts(step_folder(checkpointer.folder, step), facts)
    return facts


def _initial[State](kind: Carried[State], like: State) -> State:
    return jax.jit(kind.init, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, like))()
