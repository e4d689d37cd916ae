"""The job and rank of this process, read from the environment variables of launchers.

Pure functions of the environment. A launcher gives the number of processes, the index of this one, and how many share
its machine; the address of process 0 follows from its list of nodes. Variables are as Slurm 22.05, Open MPI 4.1 and
5.0, MPICH 5.0, torchrun 2.13 and JobSet set them (`tests/distributed/environments`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted

type Environment = Mapping[str, str]

FIRST_PORT, PORTS = 61440, 4096
"""Ports for process 0: above those that Linux assigns by itself, one of them by the number of the job."""

KUBERNETES_PORT = 61440
"""Every pod has ports of its own."""


@dataclass(frozen=True)
class Launch:
    """The values given by a launcher; None where it gives none."""

    launcher: str
    coordinator: str | None
    processes: int | None
    process_id: int | None
    local_id: int | None = None
    """Index of this process among those of its machine."""
    local_processes: int | None = None
    """Processes on this machine."""
    local_devices: int | None = None
    """GPUs that the job has on this machine."""


def find_launch(environment: Environment) -> Launch | None:
    """The values of the launcher that started this process; None when none did.

    What starts the process itself comes first: inside a Slurm job, torchrun and `mpirun` are tasks of Slurm's.

    Raises:
        UserError: the variables contradict each other, or name other processes without their address.
    """
    for launch in (_torchrun, _open_mpi, _pmi, _slurm, _ranks, _kubernetes):
        launched = launch(environment)
        if launched is not None:
            return launched
    return None


def first_host(nodes: str) -> str:
    """The first name in Slurm's list of nodes: `node[01-03,07]`, `a,b[1-2]`, `rack[1-2]n[0-3]`, `gpu-[a,b]`."""
    first = _split(nodes)[0]
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first)


def _split(nodes: str) -> list[str]:
    """The parts of a list at the commas that are outside of brackets."""
    return re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes) or [""]


def _slurm(environment: Environment) -> Launch | None:
    if "SLURM_JOB_ID" not in environment:
        return None
    if (components := _integer(environment, "SLURM_HET_SIZE") or 1) > 1:
        raise UserError(
            f"SLURM_HET_SIZE: {components}, and Slurm counts tasks and nodes of one component of such a job; set "
            "distributed.coordinator, distributed.processes and distributed.process_id (srun numbers the tasks of all "
            "components in SLURM_PROCID)"
        )
    if "SLURM_STEP_NODELIST" not in environment:  # In the batch script, or in the shell of salloc.
        tasks = _integer(environment, "SLURM_NTASKS")
        if tasks in (None, 1):
            return None
        raise UserError(
            f"SLURM_NTASKS: Slurm gave this job {tasks} tasks, and this process was started without srun, so it is "
            "none of them; put srun before the command, or set distributed.processes=1 for a single process"
        )
    processes = _needed(environment, "Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    job, step = _needed(environment, "Slurm", "SLURM_JOB_ID"), _integer(environment, "SLURM_STEP_ID") or 0
    host = first_host(environment["SLURM_STEP_NODELIST"])
    return Launch(
        "Slurm",
        f"{host}:{FIRST_PORT + (job + step) % PORTS}",
        processes,
        _needed(environment, "Slurm", "SLURM_PROCID"),
        _integer(environment, "SLURM_LOCALID"),
        _slurm_tasks_here(environment),
        _integer(environment, "SLURM_GPUS_ON_NODE"),
    )


def _slurm_tasks_here(environment: Environment) -> int | None:
    """Tasks of the step on this node, from `2(x3),1`: one number per node, with a count where several nodes agree."""
    node = _integer(environment, "SLURM_NODEID")
    tasks_per_node: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return None
        tasks_per_node += [int(match[1])] * int(match[2] or 1)
    return tasks_per_node[node] if node is not None and node < len(tasks_per_node) else None


def _open_mpi(environment: Environment) -> Launch | None:
    if "OMPI_COMM_WORLD_RANK" not in environment:
        return None
    processes = _needed(environment, "Open MPI", "OMPI_COMM_WORLD_SIZE")
    local = _integer(environment, "OMPI_COMM_WORLD_LOCAL_SIZE")
    host, job = _open_mpi_rank(environment)
    if processes == local:
        host = "127.0.0.1"
    return Launch(
        "Open MPI",
        None if host is None else f"{host}:{FIRST_PORT + job % PORTS}",
        processes,
        _needed(environment, "Open MPI", "OMPI_COMM_WORLD_RANK"),
        _integer(environment, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local,
    )


def _open_mpi_rank(environment: Environment) -> tuple[str | None, int]:
    """(host of process 0, a number that the processes of this job have in common).

    Under Slurm, process 0 is on the first node of the job. Otherwise it is taken to be where mpirun was started, which
    Open MPI 4 gives as addresses (`560398336.0;tcp://10.0.0.1,10.1.0.1:53615`) and Open MPI 5 as part of a name
    (`prterun-node01-15307@1`).
    """
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    name = environment.get("PMIX_NAMESPACE", "")
    started = re.match(r"(\d+)\.\d+;(?:tcp://([^,:;]+)|tcp6://\[([^,\]]+))", uri)
    named = re.match(r"prterun-(.+)-(\d+)@", name)
    # Open MPI 4 counts jobs in steps of 65536.
    job = int(started[1]) // 65536 if started else int(named[2]) if named else 0
    if "SLURM_JOB_NODELIST" in environment:
        return first_host(environment["SLURM_JOB_NODELIST"]), job
    if started:
        return started[2] or f"[{started[3]}]", job
    return (named[1], job) if named else (None, job)


def _torchrun(environment: Environment) -> Launch | None:
    return _ranks(environment, "torchrun") if "TORCHELASTIC_RUN_ID" in environment else None


def _ranks(environment: Environment, launcher: str = "RANK") -> Launch | None:
    """PyTorch's variables, which other launchers set too, such as Kubeflow's PyTorchJob.

    `MASTER_PORT` is taken by the store of torchrun, so process 0 listens at another port that follows from it.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys():
        return None
    host, port = environment["MASTER_ADDR"], _integer(environment, "MASTER_PORT") or 0
    return Launch(
        launcher,
        f"{f'[{host}]' if ':' in host else host}:{FIRST_PORT + port % PORTS}",
        _needed(environment, launcher, "WORLD_SIZE"),
        _needed(environment, launcher, "RANK"),
        _integer(environment, "LOCAL_RANK"),
        _integer(environment, "LOCAL_WORLD_SIZE"),
    )


def _pmi(environment: Environment) -> Launch | None:
    """MPICH, Intel MPI and others whose process manager speaks PMI; it does not name the host of process 0.

    Slurm speaks it too (`srun --mpi=pmi2`), and says more by variables of Slurm, with the same numbers.
    """
    if not {"PMI_RANK", "PMI_SIZE"} <= environment.keys():
        return None
    rank, processes = _needed(environment, "PMI", "PMI_RANK"), _needed(environment, "PMI", "PMI_SIZE")
    if (_integer(environment, "SLURM_PROCID"), _integer(environment, "SLURM_STEP_NUM_TASKS")) == (rank, processes):
        return None
    local = _integer(environment, "MPI_LOCALNRANKS")
    host = "127.0.0.1" if processes == local else None
    if host is None and "SLURM_JOB_NODELIST" in environment:
        host = first_host(environment["SLURM_JOB_NODELIST"])
    port = FIRST_PORT + (_integer(environment, "SLURM_JOB_ID") or 0) % PORTS
    at = None if host is None else f"{host}:{port}"
    return Launch("PMI", at, processes, rank, _integer(environment, "MPI_LOCALRANKID"), local)


def _kubernetes(environment: Environment) -> Launch | None:
    """A pod of an indexed job. Kubernetes gives its index; launch/kubernetes.yaml gives the number of pods."""
    if "JOB_COMPLETION_INDEX" not in environment or "KUBERNETES_SERVICE_HOST" not in environment:
        return None
    index = _needed(environment, "Kubernetes", "JOB_COMPLETION_INDEX")
    return Launch("Kubernetes", _first_pod(environment, index), None, index, 0, 1)


def _first_pod(environment: Environment, index: int) -> str | None:
    """Pods of a JobSet are called `<jobset>-<replicated job>-<job>-<index>`, under a service called as the JobSet."""
    hostname = environment.get("HOSTNAME", "")
    service = environment.get("JOBSET_NAME")
    if service is None or not hostname.endswith(f"-{index}"):
        return None
    return f"{hostname.removesuffix(f'-{index}')}-0.{service}:{KUBERNETES_PORT}"


def _needed(environment: Environment, launcher: str, *names: str) -> int:
    """The first of the variables that is set. Raises `UserError` when none is."""
    for name in names:
        value = _integer(environment, name)
        if value is not None:
            return value
    raise UserError(
        f"{names[0]}: {launcher} started this process and did not set this; set distributed.coordinator, "
        "distributed.processes and distributed.process_id"
    )


def _integer(environment: Environment, name: str) -> int | None:
    """A variable that holds a whole number; None without it. Raises `UserError` when it holds something else."""
    text = environment.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,18}", text):
        raise UserError(f"{name}: expected a whole number in this variable of the environment, got {quoted(text)}")
    return int(text)
