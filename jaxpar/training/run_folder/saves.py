"""The checkpoints of a run during training: written in the background, and reported when complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxpar.checkpoint import Checkpointer, CheckpointError
from jaxpar.checkpoint.facts import skipped_in_row
from jaxpar.checkpoint.folders import step_folder
from jaxpar.config import CheckpointConfig, Config
from jaxpar.config.reading.sections import config_from_dict
from jaxpar.layers.matmul_formats import dense_columns, tensor_names
from jaxpar.layout.state import FORMER_NAMES, TrainState
from jaxpar.memory.disk_array import copied
from jaxpar.observe.events import Listener


class Saves:
    """Saves and restores the state of a run; a save that fails costs that checkpoint and not the run.

    All calls but `report_complete` are collective over the processes of a job.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, listeners: Listener):
        self._folder, self._listeners = folder, listeners
        self._checkpointer = Checkpointer(
            folder,
            keep_last=config.keep_last,
            keep_every=config.keep_every,
            report=listeners.message,
            former=FORMER_NAMES,
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
        self, like: TrainState, config: Config, check: Callable[[dict[str, Any]], None]
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest intact state, laid out as `like` for a run of `config`, and the facts saved with it; None where
        there is none.

        `check` is called with the facts before the state takes memory; it raises an error to refuse them.
        Raises `CheckpointError` when the folder cannot be read, or what is saved does not fit `like`.
        """
        newest = self._checkpointer.latest()
        if newest is None:
            return None
        check(self._checkpointer.facts(newest))
        state, facts = read_state(self._checkpointer, newest, like, self._listeners.message, config)
        self._newest, self._skipped[newest] = newest, skipped_in_row(facts)
        self._healthy = newest
        if skipped := self._skipped[newest]:
            self._healthy = self._checkpointer.last_healthy(newest) or 0
            back = "; to go back to it, move the newer ones away" if self._healthy else ""
            self._listeners.message(
                f"The run continues from {self._name(newest)}, which was saved after {_steps(skipped)}; "
                f"{self._last_healthy()}{back}."
            )
        if like.optimizer.average is not None and not _has_average(facts):
            self._listeners.message(f"The moving average of the weights begins with those of step {newest}.")
        return state, facts

    @property
    def newest_step(self) -> int:
        """Step of the newest complete checkpoint, 0 for none; waits for the one being written."""
        self._settle()
        return self._newest

    def begin(self, step: int, state: TrainState, facts: dict[str, Any], *, must: bool) -> None:
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
    return f"{skipped} skipped step{'s' * (skipped > 1)}"


def read_state(
    checkpointer: Checkpointer, step: int, like: TrainState, report: Callable[[str], None], config: Config
) -> tuple[TrainState, dict[str, Any]]:
    """The state that was saved at `step`, laid out as `like`, and the facts saved with it.

    A residual of gradients is that of so many ranks: `report` takes the sentence that it begins anew on others, and one
    where the history of quantised matmuls under `config` begins anew, for some of them or all. Raises `CheckpointError`
    when the state cannot be read, or does not fit `like`.
    """
    facts = checkpointer.facts(step)
    # The moving average of the weights may be turned on or off.
    saved = like._replace(optimizer=like.optimizer._replace(average=like.master if _has_average(facts) else None))
    state = _restored(checkpointer, step, saved, facts, report, config)
    if jax.tree.leaves(like.residual) and not jax.tree.leaves(state.residual):
        report(f"The residual of quantised gradients begins at zero: step {step} was saved by another number of ranks.")
        state = state._replace(residual=jax.tree.map(_zeros, like.residual))
    return _as_wanted(state, like), facts


def _restored(
    checkpointer: Checkpointer, step: int, like: TrainState, facts: dict[str, Any], report: Callable[[str], None],
    config: Config,
) -> TrainState:  # fmt: skip
    """The state of `step`; magnitudes that its history does not have are those of an empty window."""
    history: Any = like.matmul_history
    columns = _former_columns(checkpointer, step, history, facts)
    if columns is None:
        if not _other_window(config_from_dict(facts["config"]), config):
            return checkpointer.restore(step, like, optional="residual")
        return _with_empty_window(checkpointer, step, like, report)
    short = jax.ShapeDtypeStruct((*history.shape[:2], len(columns)), history.dtype, sharding=history.sharding)
    state = checkpointer.restore(step, like._replace(matmul_history=short), optional="residual")
    among_all = lambda had: jnp.zeros(history.shape, history.dtype).at[..., jnp.array(columns)].set(had)
    report(
        f"The checkpoint of step {step} has no magnitudes of routed experts, which were not in FP8 then "
        "(precision.matmul: fp8_delayed): their window begins empty."
    )
    return state._replace(matmul_history=jax.jit(among_all, out_shardings=history.sharding)(state.matmul_history))


def _other_window(saved: Config, config: Config) -> bool:
    """Whether magnitudes are of other tensors or of another number of steps, where both or one have any."""
    of = lambda own: (
        (own.precision.matmul_history, tensor_names(own)) if own.precision.matmul == "fp8_delayed" else None
    )
    return of(saved) != of(config)


def _with_empty_window(
    checkpointer: Checkpointer, step: int, like: TrainState, report: Callable[[str], None]
) -> TrainState:
    """The state of `step`, but for the magnitudes that were saved."""
    history: Any = like.matmul_history
    shape, had = checkpointer.shape(step, "matmul_history"), None
    if shape is not None:
        had = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=like.step.sharding)
    state = checkpointer.restore(step, like._replace(matmul_history=had), optional="residual")
    if history is None:
        return state._replace(matmul_history=None)
    report(
        f"The window of magnitudes (precision.matmul: fp8_delayed) begins empty: that of step {step} is another one."
    )
    return state._replace(matmul_history=_zeros(history))


def _zeros(like: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.jit(lambda: jnp.zeros(like.shape, like.dtype), out_shardings=like.sharding)()


def _former_columns(
    checkpointer: Checkpointer, step: int, history: Any, facts: dict[str, Any]
) -> tuple[int, ...] | None:
    """The columns of `history` that a checkpoint has, of an earlier release that did not quantise routed experts; None
    where it has all of them, or other ones."""
    if history is None:
        return None
    columns = dense_columns(config_from_dict(facts["config"]))
    shape = checkpointer.shape(step, "matmul_history")
    return columns if len(columns) < history.shape[2] and shape == (*history.shape[:2], len(columns)) else None


def _has_average(facts: dict[str, Any]) -> bool:
    """Whether a checkpoint with these facts has a moving average of the weights."""
    return facts["config"]["optimizer"].get("ema") is not None


def _as_wanted(state: TrainState, like: TrainState) -> TrainState:
    """A restored `state` with the moving average that `like` has; a new one begins with the weights."""
    average = state.optimizer.average
    if like.optimizer.average is None:
        average = None
    elif average is None:
        average = jax.tree.map(copied, state.master)
    return state._replace(optimizer=state.optimizer._replace(average=average))
