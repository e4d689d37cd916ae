"""Weights & Biases, for a run with `run.wandb`.

The package is optional and is imported here alone. Whether and where it sends data is set in its own environment:
`wandb login` or `WANDB_API_KEY`, `WANDB_MODE=offline` to keep the run in its folder until `wandb sync`,
`WANDB_ENTITY`, `WANDB_BASE_URL`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpar.config.errors import UserError
from jaxpar.config.install import install_command
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.spelling import quoted
from jaxpar.config.strict_json import json_text
from jaxpar.observe.events import Listener, RunInfo, StepRecord, Summary
from jaxpar.observe.files import write_atomically
from jaxpar.observe.writers.scalars import evaluation_scalars, step_scalars

if TYPE_CHECKING:
    import wandb

IDENTITY_FILE = "wandb.json"
"""File in the run's folder with its project and id in W&B, so that a resumed run continues the same run there."""

INIT_PATIENCE_S = 60.0
"""Time limit for W&B to answer when a run starts."""
FINISH_PATIENCE_S = 120.0
"""Time limit for W&B to send the rest at the end."""


class WeightsAndBiases(Listener):
    """Sends logged steps, validation losses, the sample, the configuration and the summary to a project.

    Once W&B fails, that is reported once, nothing more is sent, and training continues.

    Raises:
        UserError: from the constructor where the package is missing, from `start` where W&B refuses the run or cannot
            be reached.
    """

    def __init__(self, project: str) -> None:
        if find_spec("wandb") is None:
            raise UserError(
                f"run.wandb: {quoted(project)} needs the package wandb, which is not installed; "
                f"{install_command('wandb')}, or set run.wandb=null"
            )
        self._project = project
        self._run: wandb.Run | None = None

    def start(self, info: RunInfo) -> str:
        import wandb

        folder = Path(info.folder)
        settings = wandb.Settings(
            console="off",  # the screen is ConsoleView's
            silent=True,
            init_timeout=INIT_PATIENCE_S,
            finish_timeout=FINISH_PATIENCE_S,
            finish_timeout_raises=True,
        )
        try:
            self._run = wandb.init(
                project=self._project,
                name=folder.name,
                dir=str(folder),
                id=_identity(folder, self._project),
                resume="allow",
                config=dict(info.config),
                settings=settings,
            )
            # Not W&B's own count of calls: a run that went back to its last checkpoint logs some steps again.
            self._run.define_metric("*", step_metric="step")
            return _location(self._run)
        except Exception as error:  # W&B raises errors of many kinds, and none of them is the run's own
            raise UserError(
                f"run.wandb: {quoted(self._project)} cannot be used ({_first_line(error)}); set WANDB_MODE=offline "
                "to keep the run in its folder for `wandb sync`, or run.wandb=null"
            ) from error

    def step(self, record: StepRecord) -> None:
        self._send(lambda run: run.log({"step": record.step, **step_scalars(record)}))

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        self._send(lambda run: run.log({"step": step, **evaluation_scalars(loss, baseline)}))

    def sample(self, prompt: str, continuation: str) -> None:
        def send(run: wandb.Run) -> None:
            import wandb

            run.log({"sample": wandb.Table(columns=["prompt", "continuation"], data=[[prompt, continuation]])})

        self._send(send)

    def end(self, summary: Summary) -> None:
        self._send(lambda run: run.summary.update({f"final/{key}": value for key, value in asdict(summary).items()}))
        self._send(lambda run: run.finish())
        self._run = None

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            # The run's own error must not be hidden by a failure of W&B.
            with suppress(Exception):
                run.finish(exit_code=1)

    def _send(self, call: Callable[[wandb.Run], object]) -> None:
        """`call` with the run, while W&B works. The first time that it fails, raises OSError, which is passed to the
        other listeners."""
        if self._run is None:
            return
        try:
            call(self._run)
        except Exception as error:  # of any kind: a writer must not end a run
            self._run = None
            raise OSError(f"nothing more is sent to run.wandb ({_first_line(error)})") from error


def _location(run: wandb.Run) -> str:
    """URL of the run at W&B, or the folder of an offline run and the command that sends it."""
    if run.url:
        return f"Weights & Biases shows this run at {run.url}."
    folder = run.settings.sync_dir
    return f"Weights & Biases is offline and writes to {folder}; this sends it: wandb sync {folder}"


def _identity(folder: Path, project: str) -> str:
    """The id of the run in `project`, created if the run's folder has none."""
    file = folder / IDENTITY_FILE
    if file.exists():
        try:
            known = json.loads(read_file(file))
            if known["project"] == project:
                return str(known["id"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{file}: expected an object with project and id; move the file away to go on") from None
    made = {"project": project, "id": secrets.token_hex(8)}
    write_atomically(file, (json_text(made) + "\n").encode())
    return made["id"]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
