"""The job that this process belongs to: from the configuration, then JAX's variables, then the launcher."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxpar.config.errors import UserError
from jaxpar.config.paths import is_host
from jaxpar.config.schema import DistributedConfig
from jaxpar.config.spelling import quoted
from jaxpar.distributed.launchers import Launch, find_launch
from jaxpar.distributed.rendezvous.secret import find_secret

VARIABLES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
"""Keys of `distributed` and the variables used where the key is null; launch/local.py sets these."""

ADDRESS = r".+:[0-9]{1,5}"
LISTEN_AT = "JAX_COORDINATOR_BIND_ADDRESS"
"""JAX's variable for where process 0 listens, if not at the coordinator's address."""


@dataclass(frozen=True)
class Job:
    """The processes of a job, and which one this is."""

    coordinator: str
    """`host:port` of process 0."""
    processes: int
    process_id: int
    local_devices: tuple[int, ...] | None = None
    """The GPUs that this process takes, of those that it sees; None takes all."""
    devices_expected: int | None = None
    """Devices that this process must then have; None where not given."""
    expected_by: str = ""
    """The flag or variable that states that number."""
    listen_at: str | None = None
    """`host:port` where process 0 listens; None: at `coordinator`."""
    secret: bytes | None = field(default=None, repr=False)
    """The secret that all processes of the job share; None for a job without."""


def find_job(config: DistributedConfig, environment: Mapping[str, str], host_gpus: int = 0) -> Job | None:
    """The job that this process belongs to; None for a process that is alone.

    Args:
        config: the user's configuration, which takes precedence.
        environment: the variables of the process.
        host_gpus: GPUs of this machine, whether or not this process may use them.

    Raises:
        UserError: it cannot be determined, or the settings contradict each other.
    """
    if config.processes == 1:
        return None
    written = {key: getattr(config, key) for key in VARIABLES}
    values = {key: _variable(environment, key) if value is None else value for key, value in written.items()}
    launch = None if all(value is not None for value in values.values()) else find_launch(environment)
    if launch is None and all(value is None for value in values.values()):
        return None
    if launch is not None:
        _check_agree(values, launch)
        values = {key: getattr(launch, key) if value is None else value for key, value in values.items()}
    missing = [key for key, value in values.items() if value is None]
    if missing:
        raise UserError(_missing(missing, values, launch))
    coordinator = str(values["coordinator"])
    processes, process_id = _int(values["processes"]), _int(values["process_id"])
    if not re.fullmatch(ADDRESS, coordinator) or not is_host(coordinator.rpartition(":")[0]):
        raise UserError(f"{VARIABLES['coordinator']}: expected host:port, got {quoted(coordinator)}")
    if process_id >= processes:
        raise UserError(
            f"distributed.process_id: {process_id} does not go with distributed.processes ({processes}): expected less"
            + ("" if launch is None else f"; {launch.launcher} started this process")
        )
    if processes == 1:
        return None
    share = None if launch is None else _share(launch, environment, host_gpus)
    expected, by = _expected(config, launch)
    listen_at = environment.get(LISTEN_AT)
    if listen_at is not None and not re.fullmatch(ADDRESS, listen_at):
        raise UserError(f"{LISTEN_AT}: expected host:port, got {listen_at!r}")
    secret = find_secret(config.secret_file, environment)
    return Job(coordinator, processes, process_id, share, expected, by, listen_at, secret)


def _int(value: str | int | None) -> int:
    assert isinstance(value, int)
    return value


def _variable(environment: Mapping[str, str], key: str) -> str | int | None:
    text = environment.get(VARIABLES[key])
    if text is None or key == "coordinator":
        return text
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UserError(
            f"{VARIABLES[key]}: expected a whole number in this variable of the environment, got {quoted(text)}"
        )
    return int(text)


def _check_agree(values: Mapping[str, object], launch: Launch) -> None:
    """The number of processes may be given twice if both agree: half of a job cannot detect that it is half."""
    setting = values["processes"]
    if None not in (setting, launch.processes) and setting != launch.processes and values["process_id"] is None:
        raise UserError(
            f"distributed.processes: {setting}, and {launch.launcher} started {launch.processes} processes; leave it "
            "null, or set distributed.process_id and distributed.coordinator too"
        )


def _missing(missing: list[str], values: Mapping[str, object], launch: Launch | None) -> str:
    keys = [f"distributed.{key}" for key in missing]
    if launch is not None and launch.launcher == "Kubernetes":
        return (
            f"{keys[0]}: null, and Kubernetes started this process as pod {launch.process_id} of several without "
            "saying more; set JAX_NUM_PROCESSES and JOBSET_NAME as launch/kubernetes.yaml does, or "
            "distributed.processes=1 for a run in each pod"
        )
    if launch is not None:
        return (
            f"{keys[0]}: null, and {launch.launcher}, which started this process, does not say it; set it to "
            f"{'host:port of process 0' if missing[0] == 'coordinator' else 'a number'}"
        )
    known = ", ".join(f"distributed.{key}={value}" for key, value in values.items() if value is not None)
    return f"{' and '.join(keys)}: null, and needed with {known}, because no launcher is known that says it"


def _share(launch: Launch, environment: Mapping[str, str], host_gpus: int) -> tuple[int, ...] | None:
    """The GPUs of this process where all processes of the machine see the same ones; None where each sees its own."""
    local, here = launch.local_id, launch.local_processes
    if local is None or here is None or here == 1:
        return None
    visible = visible_gpus(environment, host_gpus)
    there = launch.local_devices or host_gpus
    if visible * here <= there:  # The launcher gave each its own.
        return None
    if visible % here:
        raise UserError(
            f"{launch.launcher}: {here} processes on this machine cannot share {visible} GPUs evenly; start "
            "one process per GPU, or one per machine"
        )
    each = visible // here
    return tuple(range(local * each, (local + 1) * each))


def visible_gpus(environment: Mapping[str, str], host_gpus: int) -> int:
    """GPUs that this process may use, of `host_gpus`."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return host_gpus
    return len([part for part in chosen.split(",") if part.strip() not in ("", "-1", "NoDevFiles")])


def _expected(config: DistributedConfig, launch: Launch | None) -> tuple[int | None, str]:
    if config.devices_per_process is not None:
        return config.devices_per_process, "distributed.devices_per_process"
    if launch is not None and launch.local_devices and launch.local_processes:
        return launch.local_devices // launch.local_processes, f"{launch.launcher}'s GPUs and tasks of this machine"
    return None, ""
