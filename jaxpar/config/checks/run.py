"""Checks of a run: its name, its profile, what it watches for, its processes."""

from __future__ import annotations

import re

from jaxpar.config.errors import UserError
from jaxpar.config.paths import is_host
from jaxpar.config.schema import Config
from jaxpar.config.spelling import quoted


def profile_steps(profile: str) -> tuple[int, int]:
    """First and last step of `run.profile`.

    Raises:
        UserError: it is not two step numbers, the second not below the first, with a colon between.
    """
    match = re.fullmatch(r"(\d{1,12}):(\d{1,12})", profile)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"run.profile: expected first:last, for example 10:15, got {quoted(profile)}")
    return int(match[1]), int(match[2])


def check_run(config: Config) -> None:
    """Refuse names that are no folder or project, and a profile after the last step."""
    run = config.run
    if run.name in ("", ".", "..") or re.search(r"[/\\]", run.name) or not run.name.isprintable():
        raise UserError(
            f"run.name: expected the name of one folder, without control characters, got {quoted(run.name)}; put "
            "parent folders in run.dir"
        )
    if run.init_optimizer and (run.init_from is None or config.lora.rank):
        raise UserError(
            "run.init_optimizer: true goes on with all weights of another run; expected run.init_from, its folder, and "
            "no lora"
        )
    if run.wandb is not None and not re.fullmatch(r"[^/\\#?%:]{1,128}", run.wandb):
        raise UserError(
            f"run.wandb: expected the name of a project, at most 128 letters and none of /\\#?%:, got "
            f"{quoted(run.wandb)}"
        )
    if run.profile is not None and profile_steps(run.profile)[0] >= run.steps:
        raise UserError(f"run.profile: {run.profile} begins after the last of run.steps ({run.steps})")


def check_watch(config: Config) -> None:
    """Refuse rollbacks without detection of spikes or without checkpoints to return to."""
    if config.watch.on_spike != "rollback":
        return
    if config.watch.limits.spike is None:
        raise UserError("watch.on_spike: rollback needs spikes to be detected, and watch.limits.spike is null")
    if not config.checkpoint.every and not config.checkpoint.every_minutes:
        raise UserError(
            "watch.on_spike: rollback needs checkpoints to go back to, and checkpoint.every and "
            "checkpoint.every_minutes are off; expected steps or minutes between two saves"
        )


def check_distributed(config: Config) -> None:
    """Keys that are null are filled in and checked by `jaxpar.distributed.job`."""
    distributed = config.distributed
    processes, process_id = distributed.processes, distributed.process_id
    if processes is not None and process_id is not None and process_id >= processes:
        raise UserError(
            f"distributed.process_id: expected less than distributed.processes ({processes}), got {process_id}"
        )
    if distributed.coordinator is not None and not re.fullmatch(r".+:[0-9]{1,5}", distributed.coordinator):
        raise UserError(f"distributed.coordinator: expected host:port, got {quoted(distributed.coordinator)}")
    if distributed.coordinator is not None and not is_host(host := distributed.coordinator.rpartition(":")[0]):
        raise UserError(
            f"distributed.coordinator: {quoted(host)} is not a name or address of a host; expected host:port"
        )
    if distributed.secret_file == "":
        raise UserError("distributed.secret_file: expected the path of a file with the job's secret, got an empty text")
